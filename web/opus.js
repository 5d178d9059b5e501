/** Decodes the Opus packets of one context, by the browser's decoder. */

import { SAMPLE_RATE } from "./client.js";

/** @typedef {import("./client.js").Packet} Packet */

const DECODED_RATE = 48_000; // whatever rate the packets were made for; their band ends at 12 kHz
const STEP = DECODED_RATE / SAMPLE_RATE;

/** Null where the browser has no decoder. @type {import("./client.js").Encoding | null} */
export const OPUS =
  "AudioDecoder" in globalThis
    ? { output: { encoding: "opus" }, decoder: (ondecoded) => new OpusDecoder(ondecoded) }
    : null;

class OpusDecoder {
  #decoder;
  #ondecoded;
  /** Of the packets that are being decoded. @type {Omit<Packet, "data">[]} */
  #heads = [];

  /** @param {(chunk: import("./client.js").Chunk) => void} ondecoded */
  constructor(ondecoded) {
    this.#ondecoded = ondecoded;
    this.#decoder = new AudioDecoder({
      output: (audio) => {
        const head = /** @type {Omit<Packet, "data">} */ (this.#heads.shift());
        ondecoded({ ...head, pcm: pcmOf(audio) });
        audio.close();
      },
      error: (error) => {
        throw error;
      },
    });
    this.#decoder.configure({ codec: "opus", sampleRate: SAMPLE_RATE, numberOfChannels: 1 });
  }

  /** @param {Packet} packet */
  push({ data, ...head }) {
    if (this.#decoder.state === "closed") return;
    if (!data.length) {
      // The end behind all sound: a decoder has nothing to make of it.
      const end = () => this.#ondecoded({ ...head, pcm: new Int16Array(0) });
      return void this.#decoder.flush().then(end, () => {});
    }
    this.#heads.push(head);
    const timestamp = (1e6 * head.firstSample) / SAMPLE_RATE;
    this.#decoder.decode(new EncodedAudioChunk({ type: "key", timestamp, data }));
  }

  finish() {
    const close = () => this.close();
    if (this.#decoder.state !== "closed") this.#decoder.flush().then(close, close);
  }

  close() {
    if (this.#decoder.state !== "closed") this.#decoder.close();
  }
}

/** @param {AudioData} audio */
function pcmOf(audio) {
  const decoded = new Float32Array(audio.numberOfFrames);
  audio.copyTo(decoded, { planeIndex: 0, format: "f32-planar" });
  return Int16Array.from({ length: decoded.length / STEP }, (_, i) =>
    Math.max(-32_768, Math.min(32_767, Math.round(decoded[i * STEP] * 32_768))),
  );
}
