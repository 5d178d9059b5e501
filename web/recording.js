/** The sound of a turn, as it came from the node: 16-bit PCM, mono. */

import { SAMPLE_RATE } from "./audio.js";

/** The page keeps the newest sound, at most this much: 29 MB. */
export const MOST_MINUTES = 10;
export const MOST_SAMPLES = MOST_MINUTES * 60 * SAMPLE_RATE;
const WAV_HEADER_BYTES = 44;

export class Recording {
  samples = 0;
  /** @type {Int16Array<ArrayBuffer>[]} */
  #chunks = [];

  /** Whether all sound so far is here. */
  get whole() {
    return this.samples > 0 && this.#chunks.length > 0;
  }

  /** @param {Int16Array} pcm copied; a turn that is too long is dropped */
  add(pcm) {
    this.samples += pcm.length;
    if (this.samples > MOST_SAMPLES) this.#chunks = [];
    else this.#chunks.push(new Int16Array(pcm));
  }

  /**
   * @param {number} ms of the sound from its beginning
   * @returns {Blob} of audio/wav
   */
  wav(ms) {
    const bytes = 2 * Math.min(this.samples, Math.round((ms / 1000) * SAMPLE_RATE));
    const pcm = new Blob(this.#chunks).slice(0, bytes);
    return new Blob([wavHeader(bytes), pcm], { type: "audio/wav" });
  }
}

/** @param {number} bytes of PCM that follow */
function wavHeader(bytes) {
  const header = new DataView(new ArrayBuffer(WAV_HEADER_BYTES));
  const write = (/** @type {number} */ at, /** @type {string} */ text) =>
    [...text].forEach((letter, i) => header.setUint8(at + i, letter.charCodeAt(0)));
  write(0, "RIFF");
  header.setUint32(4, WAV_HEADER_BYTES - 8 + bytes, true);
  write(8, "WAVEfmt ");
  header.setUint32(16, 16, true); // bytes of the format
  header.setUint16(20, 1, true); // PCM
  header.setUint16(22, 1, true); // channels
  header.setUint32(24, SAMPLE_RATE, true);
  header.setUint32(28, 2 * SAMPLE_RATE, true); // bytes per second
  header.setUint16(32, 2, true); // bytes per sample
  header.setUint16(34, 16, true); // bits per sample
  write(36, "data");
  header.setUint32(40, bytes, true);
  return header.buffer;
}
