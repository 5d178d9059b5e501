/** A realtime session by OpenAI's SDK with a client secret, and all that it was told. */
import OpenAI from "openai";
import { OpenAIRealtimeWebRTC } from "openai/realtime/webrtc";

const told = { events: [], lost: [], track: null };
let rtc;

/** A session over WebRTC with the microphone. */
async function call(secret, session) {
  const client = new OpenAI({ apiKey: secret, baseURL: `${location.origin}/v1`, dangerouslyAllowBrowser: true });
  rtc = new OpenAIRealtimeWebRTC();
  const microphone = await navigator.mediaDevices.getUserMedia({ audio: true });
  rtc.peerConnection.addTrack(microphone.getAudioTracks()[0], microphone);
  rtc.peerConnection.addEventListener("track", ({ track, streams }) => {
    told.track = track;
    const player = new Audio();
    player.srcObject = streams[0];
    player.play();
  });
  rtc.onEvent((event) => told.events.push(event));
  rtc.onConnectionEvent((event) => event.type !== "state.changed" && told.lost.push(event.type));
  await rtc.connect({ exchangeSdp: async (sdp) => (await client.realtime.calls.create({ sdp, session })).text() });
}

const send = (event) => rtc.send(event);
const hangUp = () => rtc.close();
Object.assign(globalThis, { told, call, send, hangUp });
