/** A user's message for each error of the protocol. */

/** @typedef {{title: string, body: string, retry: "count" | "button" | "none"}} Problem `count`: tried again by itself */

/** Without a body it is the node's own message; without `retry` it is "none". @type {Record<string, {title: string} & Partial<Problem>>} */
const PROBLEMS = {
  at_capacity: {
    title: "The node is at capacity",
    body: "All its slots are in use. Your text is tried again in {s}.",
    retry: "count",
  },
  forbidden: { title: "The node refuses this page's address" },
  wrong_key: {
    title: "The node does not accept that key",
    body: "Check that you copied all of it, and try again.",
  },
  draining: {
    title: "The node is shutting down",
    body: "Running speech finishes; nothing new starts. This page reconnects when the node is back.",
  },
  engine_lost: {
    title: "The speech engine stopped",
    body: "The node starts a new one, usually within a second. Your text is still here: speak it again.",
    retry: "button",
  },
  slow_consumer: {
    title: "The network is too slow",
    body: "This browser or its network fell behind the speech, so the node closed the connection.",
    retry: "button",
  },
  starved: {
    title: "No more text came",
    body: "The node waits 15 seconds for text, or one while others wait; then it ends the turn. Start again when there is more text.",
  },
  unknown_voice: {
    title: "The node does not have this voice",
    body: "Pick another one from the list; it shows what the engine can speak.",
  },
  unsupported: {
    title: "No model of this node speaks this voice",
    body: "Pick another voice. The node's settings name its models: one for named, one for designed, one for cloned voices.",
  },
  unsupported_language: {
    title: "This voice does not speak that language",
    body: "Pick “Follow the voice”, or a voice of the language.",
  },
  text_too_long: { title: "The text is too long" },
};

/**
 * @param {{code: string, message: string}} error
 * @returns {Problem}
 */
export function problemOf(error) {
  const problem = PROBLEMS[error.code] ?? { title: "The node could not do that", retry: "button" };
  return { body: error.message, retry: "none", ...problem };
}

/** What is different where a call to the agent was meant. @type {Record<string, Problem>} */
const CALL_PROBLEMS = {
  at_capacity: {
    title: "The agent is at capacity",
    body: "It has the maximum number of calls. Yours is tried again in {s}.",
    retry: "count",
  },
  unreachable: {
    title: "The agent does not answer",
    body: "There was no connection. Behind a firewall the node needs a TURN server: see ice_servers in its settings.",
    retry: "button",
  },
};

/**
 * @param {{code: string, message: string}} error
 * @returns {Problem}
 */
export function callProblemOf(error) {
  return CALL_PROBLEMS[error.code] ?? problemOf(error);
}
