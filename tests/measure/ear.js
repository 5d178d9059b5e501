/**
 * Records when the user and the agent sound in the page, and the agent's messages. Runs before the page's scripts.
 *
 * Times are performance.now's: of the user when the microphone's sound enters the page, of the agent when its sound has
 * left the jitter buffer and the decoder.
 */
window.ear = {
  /** Event and time. @type {[string, number][]} */
  notes: [],
  /** Stream of the page's microphone. @type {MediaStream | null} */
  microphone: null,
  /** The page's call. @type {RTCPeerConnection | null} */
  peer: null,

  /** @param {string} what */
  note(what, at = performance.now()) {
    ear.notes.push([what, at]);
  },

  /** Remove and return the notes. */
  take() {
    return ear.notes.splice(0);
  },

  /** Mean time of the agent's sound in the jitter buffer, ms; it grows on a busy machine. */
  async buffered() {
    const reports = [...(await ear.peer.getStats()).values()];
    const { jitterBufferDelay, jitterBufferEmittedCount } = reports.find(({ type }) => type === "inbound-rtp");
    return (1000 * jitterBufferDelay) / jitterBufferEmittedCount;
  },

  /** Listen to both sides of the call that the page is in. */
  async listen() {
    const at = (/** @type {string} */ name) => new URL(`web/${name}.js`, document.baseURI).href;
    const [{ Probe }, { audioContext }] = await Promise.all([import(at("probe")), import(at("audio"))]);
    const audio = await audioContext();
    const voice = document.querySelector("#agent-voice");
    const sides = { user: ear.microphone, agent: voice.srcObject };
    ear.probes = Object.entries(sides).map(([who, stream]) => {
      const probe = new Probe(audio, stream);
      probe.onlevel = (/** @type {boolean} */ loud, /** @type {number} */ when) =>
        ear.note(`${who} ${loud ? "loud" : "quiet"}`, when);
      return probe;
    });
    voice.addEventListener("volumechange", () => ear.note(voice.muted ? "muted" : "unmuted"));
  },
};

{
  // Echo cancellation is off: without an echo of the loudspeaker it dampens the voice until it has adapted.
  const open = navigator.mediaDevices?.getUserMedia.bind(navigator.mediaDevices);
  if (open) {
    navigator.mediaDevices.getUserMedia = async ({ audio }) =>
      (ear.microphone = await open({ audio: { ...audio, echoCancellation: false } }));
  }
  const create = RTCPeerConnection.prototype.createDataChannel;
  RTCPeerConnection.prototype.createDataChannel = function (...options) {
    ear.peer = this;
    const channel = create.apply(this, options);
    channel.addEventListener("message", ({ data }) => ear.note(`told ${JSON.parse(data).type}`));
    return channel;
  };
}
