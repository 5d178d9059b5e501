/** Plays PCM by the audio worklet, behind a small buffer that grows after an underrun. */

import { SAMPLE_RATE, heardAt, latencyMs, makeAnalyser } from "./audio.js";

const START_MS = 60;
const GROW_MS = 60;
const MOST_MS = 300;
const CALM_MS = 30_000; // without an underrun, after which the buffer shrinks

/**
 * Plays the sound of a session.
 * @typedef {object} Sink
 * @property {AnalyserNode} analyser of what is heard
 * @property {number} underruns gaps in the sound while text was there
 * @property {boolean} columns whether `oncolumn` tells the waveform; else it is made of the PCM pushed
 * @property {(context: import("./client.js").Context) => void} begin a context whose sound will come
 * @property {(chunk: import("./client.js").Chunk) => void} push
 * @property {(until: {wordsMs: number}) => {playedMs: number, bufferedMs: number} | null} position of the context that
 *   sounds; null when none does. `wordsMs`: end of the last word whose time is known
 * @property {() => Promise<number | null>} silence silent at once; resolves with the moment of silence (performance.now),
 *   null where it was silent before
 * @property {() => void} finish no more sound will come: `onended` follows what is here
 * @property {() => void} released the node has confirmed the cancel
 * @property {() => void} close
 * @property {(at: number) => void} onfirst first sound of the context begun last (performance.now)
 * @property {() => void} onended the context begun last has been heard to its end
 * @property {(peak: number, brightness: number) => void} oncolumn
 */

/** @implements {Sink} */
export class Player {
  columns = false;
  underruns = 0;
  onfirst = (/** @type {number} */ _at) => {};
  onended = () => {};
  oncolumn = () => {};
  #audio;
  #node;
  #startMs = START_MS;
  #lastDry = 0;
  /** @type {import("./client.js").Context | null} */
  #context = null;
  /** Last report of the worklet. @type {{no: number, played: number, buffered: number, time: number} | null} */
  #report = null;
  /** Resolvers of `silence`. @type {((at: number) => void)[]} */
  #silences = [];

  /** @param {AudioContext} audio */
  constructor(audio) {
    this.#audio = audio;
    this.#node = new AudioWorkletNode(audio, "agent-tts-player", { numberOfInputs: 0, outputChannelCount: [1] });
    this.analyser = makeAnalyser(audio);
    this.#node.connect(this.analyser).connect(audio.destination);
    this.#node.port.onmessage = ({ data }) => this.#receive(data);
    this.#setStart(START_MS);
  }

  /** @param {import("./client.js").Context} context */
  begin(context) {
    this.#context = context;
    this.#report = null;
    this.underruns = 0;
    if (performance.now() - this.#lastDry > CALM_MS) this.#setStart(START_MS);
  }

  /** @param {import("./client.js").Chunk} chunk its memory is given away */
  push({ contextNo, flags, pcm }) {
    const last = Boolean(flags & 1);
    this.#node.port.postMessage({ type: "push", no: contextNo, pcm, last }, [pcm.buffer]);
  }

  position() {
    const report = this.#report;
    if (!report || report.no !== this.#context?.no) return null;
    const since = Math.max(0, this.#audio.currentTime - report.time) * SAMPLE_RATE;
    const moved = Math.min(since, report.buffered);
    const played = ((report.played + moved) / SAMPLE_RATE) * 1000 - latencyMs(this.#audio);
    return { playedMs: Math.max(0, played), bufferedMs: ((report.buffered - moved) / SAMPLE_RATE) * 1000 };
  }

  silence() {
    this.#node.port.postMessage({ type: "clear" });
    if (this.#audio.state !== "running") return Promise.resolve(performance.now());
    return /** @type {Promise<number>} */ (new Promise((resolve) => this.#silences.push(resolve)));
  }

  finish() {
    this.#node.port.postMessage({ type: "finish" });
  }

  released() {}

  close() {
    this.#node.port.postMessage({ type: "clear" });
    this.#node.port.onmessage = null;
    this.#node.disconnect();
    this.analyser.disconnect();
  }

  /** @param {any} message of the worklet */
  #receive(message) {
    if (message.type === "silent") {
      const at = heardAt(this.#audio, message.time);
      for (const resolve of this.#silences.splice(0)) resolve(at);
      return;
    }
    if (message.no && message.no !== this.#context?.no) return;
    if (message.type === "first") this.onfirst(heardAt(this.#audio, message.time));
    else if (message.type === "position") this.#report = message;
    else if (message.type === "dry") this.#dry();
    else if (message.type === "ended") this.onended();
  }

  /** An empty buffer is an underrun only when the text is complete; otherwise the voice waits for text. */
  #dry() {
    if (!this.#context?.ended) return;
    this.underruns++;
    this.#lastDry = performance.now();
    this.#setStart(Math.min(this.#startMs + GROW_MS, MOST_MS));
  }

  /** @param {number} ms */
  #setStart(ms) {
    this.#startMs = ms;
    this.#node.port.postMessage({ type: "start", samples: Math.round((ms * SAMPLE_RATE) / 1000) });
  }
}
