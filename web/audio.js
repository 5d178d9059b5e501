/** The page's one AudioContext, and its clock. */

import { SAMPLE_RATE } from "./client.js";

export { SAMPLE_RATE };

const LATE_MS = 2_500;
const NO_SOUND = {
  title: "This browser gets no sound device",
  body: "So it plays nothing. Connect a loudspeaker or headphones, or choose one in the system's settings; then load this page again.",
};

/** @type {Promise<AudioContext> | null} */
let made = null;

/**
 * The audio context with our worklet in it. Browsers let it sound only after a gesture: see `unlock`.
 * @returns {Promise<AudioContext>}
 */
export function audioContext() {
  made ??= make();
  return made;
}

async function make() {
  const context = new AudioContext({ sampleRate: SAMPLE_RATE, latencyHint: "interactive" });
  await context.audioWorklet.addModule(new URL("./player_worklet.js", import.meta.url));
  return context;
}

/**
 * Allow sound; must be called in the handler of a gesture. A browser without a device never does.
 * @param {import("./notices.js").Notices} notices say so after a while
 */
export async function unlock(notices) {
  const late = setTimeout(() => notices.show("no_sound", { ...NO_SOUND, actions: [{ label: "Close", run: () => {} }] }), LATE_MS);
  const context = await audioContext();
  if (context.state !== "running") await context.resume();
  clearTimeout(late);
  notices.close("no_sound");
}

/**
 * When a time of the context is heard, on performance.now's clock.
 * @param {AudioContext} context
 * @param {number} time seconds of the context
 */
export function heardAt(context, time) {
  const { contextTime, performanceTime } = context.getOutputTimestamp();
  if (performanceTime) return performanceTime + (time - /** @type {number} */ (contextTime)) * 1000;
  return processedAt(context, time) + latencyMs(context);
}

/**
 * When a time of the context is computed, on performance.now's clock.
 * @param {AudioContext} context
 * @param {number} time seconds of the context
 */
export function processedAt(context, time) {
  return performance.now() + (time - context.currentTime) * 1000;
}

/** Output latency, ms: from computing a sample to hearing it. @param {AudioContext} context */
export function latencyMs(context) {
  return (context.outputLatency || context.baseLatency || 0) * 1000;
}

/**
 * @param {AudioContext} context
 * @returns {AnalyserNode} large enough to tell a tone's frequency to 12 Hz
 */
export function makeAnalyser(context) {
  return new AnalyserNode(context, { fftSize: 2048, smoothingTimeConstant: 0 });
}
