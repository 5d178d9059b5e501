/** Sound of a media track: the browser plays it, a probe observes it. */

import { makeAnalyser } from "./audio.js";
import { Probe } from "./probe.js";

const PAUSE_MS = 400; // longer silence means that the track waits for text
const REST_MS = 100; // silence longer than a pause of speech
const RELEASE_MS = 250; // audio may still arrive this long after the node confirmed a cancel
const MOST_MUTED_MS = 2_000;

/** @typedef {import("./player.js").Sink} Sink */

/** @implements {Sink} */
export class RemoteAudio {
  columns = true;
  underruns = 0;
  onfirst = (/** @type {number} */ _at) => {};
  onended = () => {};
  oncolumn = (/** @type {number} */ _peak, /** @type {number} */ _brightness) => {};
  #audio;
  #element;
  /** Of the stream that is played. @type {Probe | null} */
  #probe = null;
  /** @type {import("./client.js").Context | null} */
  #context = null;
  #loud = false;
  #changedAt = 0;
  /** Speech heard of the context, ms; null until its first sound. @type {number | null} */
  #playedMs = null;
  #countedAt = 0;
  /** Resolvers of `silence`. @type {((at: number | null) => void)[]} */
  #silences = [];
  #stoppedAt = 0;
  /** Whether there was sound at the stop. */
  #wasLoud = false;
  /** @type {ReturnType<typeof setTimeout>} */
  #resting = 0;
  /** @type {ReturnType<typeof setTimeout>} */
  #unmute = 0;

  /**
   * @param {AudioContext} audio
   * @param {HTMLAudioElement} element
   */
  constructor(audio, element) {
    this.#audio = audio;
    this.#element = element;
    element.muted = false;
    this.analyser = makeAnalyser(audio);
  }

  /**
   * Play this one, the node's voice from now on. What a context goes on with counts from where the one before fell silent.
   * @param {MediaStream} stream
   */
  follow(stream) {
    if (stream === this.#element.srcObject) return;
    this.#element.srcObject = stream;
    this.#element.play().catch(() => {});
    this.#probe?.close();
    this.#probe = new Probe(this.#audio, stream, this.analyser);
    this.#probe.onlevel = (loud, at) => this.#level(loud, at);
    this.#probe.oncolumn = (peak, brightness) => {
      if (this.#playedMs !== null) this.oncolumn(peak, brightness);
    };
    if (this.#playedMs !== null && !this.#loud) {
      this.#playedMs = Math.max(0, this.#playedMs - Math.min(performance.now() - this.#changedAt, PAUSE_MS));
    }
    this.#loud = false;
  }

  /** @param {import("./client.js").Context} context */
  begin(context) {
    this.#context = context;
    this.#playedMs = null;
    // Browsers refuse before a gesture; `play` is called again with the next one.
    this.#element.play().catch(() => {});
  }

  push() {}

  /**
   * The track has no contexts, so the position is an estimate: the time with sound or short pauses, at most the end of
   * the known words.
   * @param {{wordsMs: number}} until
   */
  position({ wordsMs }) {
    const now = performance.now();
    const passed = now - this.#countedAt;
    this.#countedAt = now;
    if (this.#playedMs === null) return null;
    const quietMs = this.#loud ? 0 : now - this.#changedAt;
    if (quietMs < PAUSE_MS) this.#playedMs += passed;
    if (wordsMs) this.#playedMs = Math.min(this.#playedMs, wordsMs);
    if (this.#context?.done && !this.#context.cancelled && quietMs > PAUSE_MS) this.#end();
    return { playedMs: this.#playedMs ?? 0, bufferedMs: 0 };
  }

  /** Mutes the element at once; resolves when the incoming track itself stays silent. */
  silence() {
    this.#context = null;
    this.#playedMs = null;
    this.#wasLoud = this.#loud;
    this.#element.muted = true;
    clearTimeout(this.#unmute);
    this.#stoppedAt = performance.now();
    this.#settle();
    return /** @type {Promise<number | null>} */ (new Promise((resolve) => this.#silences.push(resolve)));
  }

  finish() {
    this.#end();
  }

  released() {
    clearTimeout(this.#unmute);
    this.#unmute = setTimeout(() => this.#listen(), RELEASE_MS);
  }

  close() {
    clearTimeout(this.#unmute);
    clearTimeout(this.#resting);
    this.#probe?.close();
    this.#element.srcObject = null;
  }

  /** Unmute, unless the sound has not paused since the stop: on a slow machine it is still the old one. */
  #listen() {
    const isOld = this.#loud && this.#changedAt < this.#stoppedAt;
    if (isOld && performance.now() - this.#stoppedAt < MOST_MUTED_MS) this.released();
    else this.#element.muted = false;
  }

  /** Silence counts after REST_MS, because speech has pauses. It began with the last change, or with the stop. */
  #settle() {
    clearTimeout(this.#resting);
    if (this.#loud) return;
    this.#resting = setTimeout(() => {
      const at = this.#wasLoud ? Math.max(this.#changedAt, this.#stoppedAt) : null;
      for (const resolve of this.#silences.splice(0)) resolve(at);
    }, REST_MS);
  }

  /**
   * @param {boolean} loud
   * @param {number} at
   */
  #level(loud, at) {
    this.#loud = loud;
    this.#changedAt = at;
    if (this.#silences.length) this.#settle();
    if (loud && this.#playedMs === null && this.#context?.no != null) {
      this.#playedMs = 0;
      this.#countedAt = at;
      this.onfirst(at);
    }
  }

  #end() {
    this.#context = null;
    this.#playedMs = null;
    this.onended();
  }
}
