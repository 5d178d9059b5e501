/** RTVI: the messages between a Pipecat agent and its client, over a data channel. */

const LABEL = "rtvi-ai";
const VERSION = "2.2.0"; // of the protocol
const PING_MS = 1_000; // after three missing pings the agent ends the call
const MOST_TEXT = 4_000; // characters of one message

export class Rtvi {
  /** @type {(type: string, data: any) => void} */
  onmessage = () => {};
  #channel;
  #ids = 0;
  #pings;

  /** @param {RTCDataChannel} channel open; used only here */
  constructor(channel) {
    this.#channel = channel;
    channel.onmessage = ({ data }) => {
      const message = JSON.parse(data);
      if (message.label === LABEL) this.onmessage(message.type, message.data ?? {});
    };
    this.#pings = setInterval(() => this.#push("ping"), PING_MS);
    this.#push("ping");
  }

  /** Tell the agent that this client is ready. */
  ready() {
    this.#send("client-ready", { version: VERSION, about: { library: "agent_tts page" } });
  }

  /**
   * Send a typed turn of the user; it interrupts the agent.
   * @param {string} text what is beyond 4 000 characters is left out
   */
  write(text) {
    const content = [...text].slice(0, MOST_TEXT).join("");
    this.#send("send-text", { content, options: { run_immediately: true, audio_response: true } });
  }

  /**
   * Send a custom message.
   * @param {string} t what
   * @param {object} d
   */
  tell(t, d) {
    this.#send("client-message", { t, d });
  }

  /**
   * Tell the agent whether this client sends audio.
   * @param {boolean} enabled
   */
  track(enabled) {
    const message = { type: "trackStatus", receiver_index: 0, enabled };
    this.#push(JSON.stringify({ type: "signalling", message }));
  }

  close() {
    clearInterval(this.#pings);
    this.#channel.onmessage = null;
  }

  /**
   * @param {string} type
   * @param {object} data
   */
  #send(type, data) {
    this.#push(JSON.stringify({ label: LABEL, type, id: String(++this.#ids), data }));
  }

  /** @param {string} text */
  #push(text) {
    if (this.#channel.readyState === "open") this.#channel.send(text);
  }
}
