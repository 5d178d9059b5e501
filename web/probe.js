/** Observes the loudness and spectrum of a stream that is played or sent elsewhere. */

import { makeAnalyser, processedAt } from "./audio.js";
import { COLUMN_SAMPLES } from "./wave.js";

export class Probe {
  /** A change between sound and silence, with its time on performance.now's clock. */
  onlevel = (/** @type {boolean} */ _loud, /** @type {number} */ _at) => {};
  /** 20 ms of sound: its peak 0..1, and zero crossings a sample. */
  oncolumn = (/** @type {number} */ _peak, /** @type {number} */ _brightness) => {};
  /** Analyses the stream. */
  analyser;
  #source;
  #node;

  /**
   * @param {AudioContext} audio
   * @param {MediaStream} stream a remote one must be played by an element, else Chromium feeds nothing
   * @param {AnalyserNode} analyser
   */
  constructor(audio, stream, analyser = makeAnalyser(audio)) {
    this.#source = new MediaStreamAudioSourceNode(audio, { mediaStream: stream });
    this.#node = new AudioWorkletNode(audio, "agent-tts-probe", { channelCount: 1, channelCountMode: "explicit" });
    this.#node.port.postMessage({ type: "column", samples: COLUMN_SAMPLES });
    this.#node.port.onmessage = ({ data }) => {
      if (data.type === "level") this.onlevel(data.loud, processedAt(audio, data.time));
      else this.oncolumn(data.peak, data.crossings / COLUMN_SAMPLES);
    };
    this.analyser = analyser;
    // The probe outputs silence; only a connected node runs.
    this.#source.connect(this.#node).connect(audio.destination);
    this.#source.connect(this.analyser);
  }

  close() {
    this.#node.port.onmessage = null;
    this.#source.disconnect();
    this.#node.disconnect();
  }
}
