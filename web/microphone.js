/** The microphone, and messages for a missing one. */

/** For a conversation: without echo cancellation the agent would hear itself. */
export const CONVERSATION = { echoCancellation: true, noiseSuppression: true, autoGainControl: true };
/** For cloning: unprocessed. */
export const RECORDING = { echoCancellation: false, noiseSuppression: false, autoGainControl: true };

/** @typedef {{title: string, body: string}} Problem */

/** For a page that is not a secure context. @type {Problem} */
export const INSECURE = {
  title: "The microphone needs HTTPS, or localhost",
  body: "Browsers give other addresses no microphone. Put a TLS proxy before the node, or tunnel its port.",
};

const MISSING = { title: "There is no microphone", body: "Plug one in and start again." };
const TAKEN = { body: "Another program may be using it: close that one and start again." };
/** By the name of a browser's error. @type {Record<string, Partial<Problem>>} */
const PROBLEMS = {
  NotAllowedError: {
    title: "The microphone is not allowed",
    body: "Allow it at the sign beside the page's address, then start again.",
  },
  NotFoundError: MISSING,
  OverconstrainedError: MISSING,
  NotReadableError: TAKEN,
  AbortError: TAKEN,
};

export class MicrophoneError extends Error {
  /** @param {Problem} problem */
  constructor(problem) {
    super(problem.title);
    this.problem = problem;
  }
}

/**
 * @param {MediaTrackConstraints} constraints
 * @returns {Promise<MediaStream>} one audio track; the caller stops it
 * @throws {MicrophoneError} there is no microphone
 */
export async function openMicrophone(constraints) {
  if (!isSecureContext) throw new MicrophoneError(INSECURE);
  try {
    return await navigator.mediaDevices.getUserMedia({ audio: constraints });
  } catch (error) {
    throw new MicrophoneError(problemOf(/** @type {Error} */ (error).name));
  }
}

/** @param {MediaStream | null} stream ends, and with it the browser's recording sign */
export function stopMicrophone(stream) {
  for (const track of stream?.getTracks() ?? []) track.stop();
}

/**
 * @param {string} name of the browser's error
 * @returns {Problem}
 */
export function problemOf(name) {
  const { title = "The microphone could not be opened", body = `The browser says ${name}.` } = PROBLEMS[name] ?? {};
  return { title, body: `${body} Until then you can write.` };
}
