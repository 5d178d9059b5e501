/** What to tell a person about each error of the protocol. */

/**
 * @typedef {{title: string, body: string, retry: "count" | "button" | "none"}} Problem `count`: tried again by itself
 */

/** @type {Record<string, Problem>} */
const PROBLEMS = {
  at_capacity: {
    title: "The node is at capacity",
    body: "All its voices are taken. Your text is tried again in {s}.",
    retry: "count",
  },
  wrong_key: {
    title: "That key does not open this node",
    body: "See whether all of it was copied, and try again.",
    retry: "none",
  },
  draining: {
    title: "The node is going down",
    body: "What is being spoken will finish; nothing new starts. This page reconnects by itself when the node is back.",
    retry: "none",
  },
  engine_lost: {
    title: "The speech engine was lost",
    body: "The node starts a new one, usually within a second. Nothing of your text is lost: speak it again.",
    retry: "button",
  },
  slow_consumer: {
    title: "The sound was taken too slowly",
    body: "This browser or its network fell behind real time, so the node closed the line. Close other heavy tabs, or use WebRTC.",
    retry: "button",
  },
  starved: {
    title: "No more text came",
    body: "The node waits 15 seconds for words, then it ends the turn. Start again when there is more to say.",
    retry: "none",
  },
  unknown_voice: {
    title: "The node does not have this voice",
    body: "Pick another one from the list; it shows what the engine can speak.",
    retry: "none",
  },
  unsupported: {
    title: "No model of this node speaks that",
    body: "Pick another voice. The node's settings name its models: one for named, one for designed, one for cloned voices.",
    retry: "none",
  },
  unsupported_language: {
    title: "This voice does not speak that language",
    body: "Pick “Follow the voice”, or a voice of the language.",
    retry: "none",
  },
  text_too_long: {
    title: "The text is too long",
    body: "Speak it in parts: the node takes a limited number of characters a turn.",
    retry: "none",
  },
};

/**
 * @param {{code: string, message: string}} error
 * @returns {Problem}
 */
export function problemOf(error) {
  return PROBLEMS[error.code] ?? { title: "The node could not do that", body: error.message, retry: "button" };
}

/** What is different where a call to the agent was meant. @type {Record<string, Problem>} */
const CALL_PROBLEMS = {
  at_capacity: {
    title: "The agent is at capacity",
    body: "It is in as many calls as it may be. Yours is tried again in {s}.",
    retry: "count",
  },
  unreachable: {
    title: "The agent does not answer",
    body: "The call did not come about. Behind a firewall the node needs a TURN server: see ice_servers in its settings.",
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
