/** What this browser keeps for the page: choices and the draft, nothing secret. Without storage, nothing is kept. */

const PREFIX = "agent_tts.";

/**
 * @param {string} name
 * @returns {any} null when nothing is kept
 */
export function recall(name) {
  try {
    return JSON.parse(localStorage.getItem(PREFIX + name) ?? "null");
  } catch {
    return null; // storage is not allowed, or holds something else
  }
}

/**
 * @param {string} name
 * @param {any} value as JSON has it
 */
export function remember(name, value) {
  try {
    localStorage.setItem(PREFIX + name, JSON.stringify(value));
  } catch {
    // Storage is full, or not allowed.
  }
}
