/** A call by Pipecat's client, and all that it was told. */
import { PipecatClient } from "@pipecat-ai/client-js";
import { SmallWebRTCTransport, WavMediaManager } from "@pipecat-ai/small-webrtc-transport";

const told = { states: [], user: [], bot: "", answers: 0, server: [], errors: [], track: null };

const client = new PipecatClient({
  // Its other media manager loads its code from a server of Daily's.
  transport: new SmallWebRTCTransport({ mediaManager: new WavMediaManager() }),
  enableMic: true,
  callbacks: {
    onTransportStateChanged: (state) => told.states.push(state),
    onUserTranscript: ({ text, final }) => final && told.user.push(text),
    onBotTtsText: ({ text }) => (told.bot += `${text} `),
    onBotStoppedSpeaking: () => (told.answers += 1),
    onServerMessage: (message) => told.server.push(message),
    onError: ({ data }) => told.errors.push(data),
    onMessageError: ({ data }) => told.errors.push(data),
    onTrackStarted: (track, participant) => {
      if (!participant?.local) told.track = track;
    },
  },
});

/** Begins a call; resolves with what the bot says of itself. */
function call(requestData) {
  return client.connect({ webrtcRequestParams: { endpoint: "/api/agent/offer", requestData } });
}

Object.assign(globalThis, { client, told, call });
