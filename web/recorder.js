/** Records a clip from the microphone as a file for the node. */

import { RECORDING, openMicrophone, stopMicrophone } from "./microphone.js";

export const CLIP_MS = 10_000;
const TICK_MS = 200;

export class Recorder {
  /** So much of the time is left. @type {(leftMs: number) => void} */
  ontick = () => {};
  /** @type {MediaRecorder | null} */
  #recorder = null;

  get recording() {
    return this.#recorder !== null;
  }

  /**
   * Record until `stop`, at most ten seconds.
   * @returns {Promise<Blob>}
   * @throws {import("./microphone.js").MicrophoneError} there is no microphone
   */
  async record() {
    const stream = await openMicrophone(RECORDING);
    const recorder = (this.#recorder = new MediaRecorder(stream));
    const until = performance.now() + CLIP_MS;
    const ticks = setInterval(() => {
      const left = until - performance.now();
      if (left <= 0) this.stop();
      else this.ontick(left);
    }, TICK_MS);
    try {
      return await recorded(recorder);
    } finally {
      clearInterval(ticks);
      stopMicrophone(stream);
      this.#recorder = null;
    }
  }

  stop() {
    if (this.#recorder?.state === "recording") this.#recorder.stop();
  }
}

/**
 * @param {MediaRecorder} recorder is started
 * @returns {Promise<Blob>} once it has been stopped
 */
function recorded(recorder) {
  return new Promise((resolve) => {
    /** @type {Blob[]} */
    const parts = [];
    recorder.ondataavailable = ({ data }) => parts.push(data);
    recorder.onstop = () => resolve(new Blob(parts, { type: recorder.mimeType }));
    recorder.start();
  });
}
