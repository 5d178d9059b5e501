/**
 * A client of a speech node, for browsers and Node 22 or newer; in one file without dependencies.
 *
 *     const node = await connect("http://127.0.0.1:8100");
 *     const speech = node.open({ voice: "nova" });
 *     for await (const token of llm) speech.write(token);
 *     speech.end();
 *     for await (const event of speech) if (event.type === "audio") play(event.pcm);
 *
 * `Session` and `Context` are the protocol agent_tts.v1 itself, over any `Transport`.
 */

export const SAMPLE_RATE = 24_000;

const PROTOCOL = "agent_tts.v1";
const HEADER_BYTES = 16; // version u8, kind u8, flags u16, context_no u32, first_sample u64; little-endian
const VERSION = 1;
const KIND_AUDIO = 1;
const LAST = 1; // flag of a context's last audio
const OPEN = 1; // `readyState`
const GARBLED = 1002; // code of a close: the other side does not speak the protocol
const LOST = 1006; // and: without a word
const OPEN_TIMEOUT_MS = 8_000;
const GREETING_TIMEOUT_MS = 5_000;
const REQUEST_TIMEOUT_MS = 10_000;

// A browser cannot ping: the protocol's own ping asks a connection that is in use, and silent, whether it is alive.
const TICK_MS = 500;
const ASK_TICKS = 3; // without a sign of the node; then it is asked
const MOST_QUIET_TICKS = 5; // while an utterance is open: after more it is lost
const MOST_IDLE_TICKS = 11; // and while none is
const IN_USE_MS = 15_000; // since anything else was sent or came. An idle connection is not kept from its end
const ALIVE = "alive"; // what these pings carry

// Of a connection that moves.
const RENEW_MS = 3_000; // to find another node after one is lost
// Before an attempt it waits for a random time, up to this, then up to twice as long each time: the clients of a node that
// is lost do not come at once.
const RETRY_MS = 50;
const MOST_RETRY_MS = 1_000;
const CALM_MS = 10_000; // a connection that has lived so long begins anew with attempts
const MOST_LOSSES = 3; // of one utterance: a text that ends nodes does not go through the fleet
const WIDTHS = /** @type {Record<string, number>} */ ({ pcm_s16le: 2, pcm_f32le: 4, mulaw: 1, alaw: 1 }); // bytes of a sample
const MARGIN_MS = 200; // of sound that the listener has left: then a word is given before all of it has come

/** An error answer of the node. */
export class ApiError extends Error {
  /**
   * @param {number} status HTTP status; 0 when the node could not be reached
   * @param {string} code code of the wire protocol, or "unreachable"
   * @param {string} message
   * @param {number | null} retryAfterMs
   */
  constructor(status, code, message, retryAfterMs = null) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfterMs = retryAfterMs;
  }
}

/**
 * @typedef {object} ConnectOptions
 * @property {string} [apiKey] a key of the node; not for a browser: give it a token
 * @property {string | (() => string | Promise<string>)} [token] of `POST /v1/tokens`, good once; with `moves` a
 *   function that gets one for each connection
 * @property {boolean} [moves] it goes to another node when its node asks it to, or is lost: open utterances then go on
 *   from the first word that has not come whole. `url` is that of a load balancer, or nodes tell theirs (`public_url`)
 * @property {AbortSignal} [signal] gives up
 * @property {typeof WebSocket} [WebSocket] another class, for a runtime without one: that of the package `ws`
 *
 * @typedef {object} SpeechOptions fields of `context.open`; what is left out is the node's choice
 * @property {string | null} [model]
 * @property {string | null} [voice]
 * @property {number[] | null} [speaker_embedding] a speaker's vector, in place of a voice
 * @property {string} [language]
 * @property {string | null} [instructions]
 * @property {number | null} [seed]
 * @property {number} [speed]
 * @property {number} [pitch]
 * @property {Sampling} [sampling]
 * @property {number | null} [lead_ms] how far audio runs ahead of real time; null: as fast as it can be made
 * @property {number | null} [leading_silence_ms] silence of a voice before its speech that is sent; null: all
 * @property {number | null} [loudness] LUFS that voices are brought to; null: their own
 * @property {boolean} [clean] make markdown, links and emoji speakable
 * @property {boolean | null} [normalize]
 * @property {"auto" | "none"} [markup] whether tags are obeyed, or are text
 * @property {"live" | "whole" | "auto"} [text_mode]
 * @property {{[written: string]: string | object} | null} [lexicon] how words are said
 * @property {"word" | "none"} [timestamps]
 *
 * @typedef {object} Sampling of the neural engines; null is the model's own
 * @property {number | null} [temperature]
 * @property {number | null} [top_k]
 * @property {number | null} [top_p]
 * @property {number | null} [repetition_penalty]
 *
 * @typedef {{type: "audio", pcm: Int16Array, firstSample: number, last: boolean}} AudioEvent 24 kHz, mono
 * @typedef {{type: "words", kind: "estimated" | "aligned", words: Word[]}} WordsEvent
 * @typedef {{type: "mark", name: string, at_ms: number, char_start: number}} MarkEvent
 * @typedef {{type: "context.started", context_no: number, queue_ms: number}} StartedEvent
 * @typedef {{type: "context.flushed", flush_id: string, audio_ms: number}} FlushedEvent
 * @typedef {{type: "context.cancelled", played_ms: number, generated_ms: number, heard_text: string, unheard_text: string}} CancelledEvent
 * @typedef {{type: "context.done", reason: "end" | "cancelled" | "length" | "error", audio_ms: number, ttfa_ms: number | null, rtf: number | null}} DoneEvent
 * @typedef {{type: "warning", code: string, message: string, fields: string[]}} WarningEvent
 * @typedef {AudioEvent | WordsEvent | MarkEvent | StartedEvent | FlushedEvent | CancelledEvent | DoneEvent | WarningEvent} SpeechEvent
 */

/**
 * Connect to a node.
 * @param {string | URL} url of the node: http://127.0.0.1:8100
 * @param {ConnectOptions} options
 * @returns {Promise<SpeechNode>}
 * @throws {ApiError} the node cannot be reached or refuses; the signal's reason where that aborts
 */
export async function connect(
  url,
  { apiKey, token, moves = false, signal, WebSocket: Socket = globalThis.WebSocket } = {},
) {
  /** @type {Dial} */
  const dial = async (address, giveUp) => {
    const base = placeOf(address, url);
    const socket = new URL("v1/tts/stream", base);
    socket.protocol = socket.protocol.replace("http", "ws");
    const given = typeof token === "function" ? await token() : token;
    const pass = given ?? (apiKey && (await tokenFor(base, apiKey, giveUp)));
    if (pass) socket.searchParams.set("token", pass);
    const session = await Session.open(socket, giveUp, Socket);
    await session.greeted(giveUp);
    return session;
  };
  let session = await dial(null, signal);
  if (moves) {
    session = new Session(new MovingTransport(session, dial));
    await session.greeted();
  }
  return new SpeechNode(session);
}

/**
 * Where a node asks to go, if that is an address and as private as `url`; otherwise `url`.
 * @param {string | null} address
 * @param {string | URL} url
 */
function placeOf(address, url) {
  const home = httpUrl(url);
  if (address === null || !URL.canParse(address)) return home;
  const there = httpUrl(address);
  return there.protocol === "https:" || there.protocol === home.protocol ? there : home;
}

/** @param {string | URL} url of a node */
function httpUrl(url) {
  const base = new URL(url);
  base.protocol = base.protocol.replace("ws", "http");
  if (!base.pathname.endsWith("/")) base.pathname += "/";
  return base;
}

/**
 * A one-time token: a WebSocket of a browser has no headers.
 * @param {URL} base
 * @param {string} apiKey
 * @param {AbortSignal} [signal]
 */
async function tokenFor(base, apiKey, signal) {
  const timeout = AbortSignal.timeout(REQUEST_TIMEOUT_MS);
  /** @type {RequestInit} */
  const init = {
    method: "POST",
    headers: { Authorization: `Bearer ${apiKey}` },
    signal: signal ? AbortSignal.any([signal, timeout]) : timeout,
  };
  const response = await fetch(new URL("v1/tokens", base), init).catch((error) => {
    if (signal?.aborted) throw error;
    throw new ApiError(0, "unreachable", "The node does not answer.");
  });
  const body = await response.json().catch(() => null);
  if (response.ok) return String(body.token);
  throw new ApiError(response.status, body?.error?.code ?? "internal", body?.error?.message ?? response.statusText);
}

/** A connection to a node: any number of utterances, one after another or at once. Made by `connect`. */
export class SpeechNode {
  /** The connection is gone; open utterances have failed. @type {(error: ApiError) => void} */
  onclose = () => {};
  #session;
  /** @type {Map<Context, Speech>} */
  #open = new Map();

  /** @param {Session} session greeted */
  constructor(session) {
    this.#session = session;
    session.onmessage = (message, context) => this.#receive(message, context);
    session.onaudio = ({ pcm, firstSample, flags }, context) =>
      this.#open.get(context)?.push({ type: "audio", pcm, firstSample, last: Boolean(flags & LAST) });
    session.onclose = (code, reason) => {
      const error = session.lost(code, reason) ?? new ApiError(0, "closed", "The node has closed an idle connection.");
      this.#fail(error);
      this.onclose(error);
    };
  }

  /** What the node told first: engine, model, limits. */
  get greeting() {
    return this.#session.created;
  }

  /**
   * Begin an utterance. Text may be written at once.
   * @param {SpeechOptions} options
   */
  open(options = {}) {
    const context = this.#session.open(options);
    const speech = new Speech(context);
    this.#open.set(context, speech);
    if (this.#session.closed) this.#fail(new ApiError(0, "closed", "The connection is closed."));
    return speech;
  }

  /** Close the connection; open utterances fail. Idempotent. */
  close() {
    this.#session.close();
    this.#fail(new ApiError(0, "closed", "The connection is closed."));
  }

  /** @param {ApiError} error */
  #fail(error) {
    for (const speech of this.#open.values()) speech.finish(error);
    this.#open.clear();
  }

  /**
   * @param {any} message
   * @param {Context | undefined} context
   */
  #receive(message, context) {
    const speech = context && this.#open.get(context);
    if (!speech) return;
    const isOver = context.done;
    if (isOver) this.#open.delete(context);
    if (message.type === "error") {
      const { code, message: text, retry_after_ms } = message;
      speech.fail(new ApiError(0, code, text, retry_after_ms), isOver);
    } else {
      speech.push(message);
    }
    if (isOver) speech.finish();
  }
}

/** One utterance: text goes in as it is written, events come out as they arrive; iterate over them once. */
export class Speech {
  #context;
  /** Not taken yet. A node sends audio at most `lead_ms` ahead of real time. @type {SpeechEvent[]} */
  #events = [];
  /** @type {ApiError | null} */
  #error = null;
  #isOver = false;
  #arrived = () => {};

  /** @param {Context} context */
  constructor(context) {
    this.#context = context;
  }

  /** More text, verbatim: any split, spaces matter. @param {string} text */
  write(text) {
    this.#context.append(text);
  }

  /** Speak all text so far as complete words; `context.flushed` follows its audio. @param {string} flushId */
  flush(flushId = "") {
    this.#context.flush(flushId);
  }

  /** No more text. */
  end() {
    this.#context.end();
  }

  /** What the listener has heard, which makes `heard_text` exact. @param {number} playedMs */
  acknowledge(playedMs) {
    this.#context.acknowledge(playedMs);
  }

  /**
   * Barge-in: no more audio comes; `context.cancelled` tells what was heard.
   * @param {number | null} playedMs what was heard; null: what was acknowledged
   */
  cancel(playedMs = null) {
    this.#events = this.#events.filter(({ type }) => type !== "audio");
    this.#context.cancel(playedMs);
  }

  /** Events up to `context.done`; leaving the loop before it cancels. Throws the `ApiError` that ended the utterance. */
  async *[Symbol.asyncIterator]() {
    try {
      while (true) {
        for (let event; (event = this.#events.shift()); ) yield event;
        if (this.#error) throw this.#error;
        if (this.#isOver) return;
        await /** @type {Promise<void>} */ (new Promise((resolve) => (this.#arrived = resolve)));
      }
    } finally {
      if (!this.#isOver) this.cancel();
    }
  }

  /** For `SpeechNode`. @param {SpeechEvent} event */
  push(event) {
    this.#events.push(event);
    this.#arrived();
  }

  /**
   * For `SpeechNode`.
   * @param {ApiError} error thrown to the reader after the events so far
   * @param {boolean} isOver
   */
  fail(error, isOver) {
    this.#error = error;
    this.#isOver = isOver;
    this.#arrived();
  }

  /** For `SpeechNode`: nothing more comes. @param {ApiError | null} error */
  finish(error = null) {
    this.#error ??= error;
    this.#isOver = true;
    this.#arrived();
  }
}

/**
 * @typedef {{word: string, start_ms: number, end_ms: number, char_start: number, char_end: number}} Word
 * @typedef {{type: string, code: string, message: string, context_id?: string, retry_after_ms?: number, fatal?: boolean}} ErrorMessage
 */

/** One utterance: text goes in as it is written. */
export class Context {
  /** Number of this context in audio headers; null until the node has started it. @type {number | null} */
  no = null;
  /** When the first text left, on performance.now's clock. @type {number | null} */
  sentAt = null;
  ended = false;
  /** Cancelled here: audio that still arrives is dropped. */
  cancelled = false;
  /** The context has ended. */
  done = false;
  /** Null where the sound comes as PCM. @type {Decoder | null} */
  decoder = null;
  #session;

  /**
   * @param {Session} session
   * @param {string} id
   */
  constructor(session, id) {
    this.#session = session;
    this.id = id;
  }

  /** Verbatim: any split, spaces matter. @param {string} text */
  append(text) {
    if (!text || this.ended || this.cancelled) return;
    this.sentAt ??= performance.now();
    for (const part of this.#session.split(text)) {
      this.#session.send({ type: "text.append", context_id: this.id, text: part });
    }
  }

  /** Speak all text so far without waiting for more. @param {string} flushId */
  flush(flushId) {
    if (this.ended || this.cancelled) return;
    this.#session.send({ type: "context.flush", context_id: this.id, flush_id: flushId });
  }

  /** No more text. */
  end() {
    if (this.ended || this.cancelled) return;
    this.ended = true;
    this.#session.send({ type: "context.end", context_id: this.id });
  }

  /**
   * Cancel (barge-in). `playedMs` lets the node work out which text was heard.
   * @param {number | null} playedMs null where the node itself plays the audio
   */
  cancel(playedMs) {
    if (this.cancelled || this.done) return;
    this.cancelled = true;
    const heard = playedMs === null ? {} : { played_ms: Math.round(playedMs) };
    this.#session.send({ type: "context.cancel", context_id: this.id, ...heard });
  }

  /** @param {number} playedMs what the listener has heard */
  acknowledge(playedMs) {
    if (this.cancelled || this.done) return;
    this.#session.send({ type: "playback.ack", context_id: this.id, played_ms: Math.round(playedMs) });
  }
}

export class Session {
  /** The node's first message; null until it is there. @type {any} */
  created = null;
  /** Contexts that are not done. @type {Map<string, Context>} */
  contexts = new Map();
  /** Called for every message of the node, with its context. */
  onmessage = (/** @type {any} */ _message, /** @type {Context | undefined} */ _context) => {};
  onaudio = (/** @type {Chunk} */ _chunk, /** @type {Context} */ _context) => {};
  onclose = (/** @type {number} */ _code, /** @type {string} */ _reason) => {};
  /** Sees everything that is sent and received. @type {(direction: "out" | "in" | "audio", what: any) => void} */
  ontraffic = () => {};
  closed = false;
  /** How the sound of new contexts is encoded; null: PCM. @type {Encoding | null} */
  encoding = null;
  /** Why the node is going to close the session, if it said so. @type {{code: string, message: string, retry_after_ms?: number} | null} */
  parting = null;
  /** @type {Map<number, Context>} */
  #byNo = new Map();
  #opened = 0;
  /** Open; used only here, and by who takes it over. */
  transport;

  /** @param {Transport} transport */
  constructor(transport) {
    this.transport = transport;
    transport.onmessage = (message) => this.#receive(message);
    transport.onaudio = (packet) => this.#audio(packet);
    transport.onclose = (code, reason) => {
      this.closed = true;
      for (const context of this.contexts.values()) context.decoder?.finish();
      this.onclose(code, reason);
    };
  }

  /**
   * Open a session over a WebSocket; `greeted` comes next.
   * @param {URL} url of the socket
   * @param {AbortSignal | null} signal
   * @param {typeof WebSocket} Socket
   * @returns {Promise<Session>} rejects with an `ApiError`, or the signal's reason
   */
  static async open(url, signal = null, Socket = WebSocket) {
    signal?.throwIfAborted();
    const socket = new Socket(url, PROTOCOL);
    socket.binaryType = "arraybuffer";
    const limit = new AbortController();
    try {
      return await new Promise((resolve, reject) => {
        socket.onerror = () => {}; // `ws` throws without it; the close follows
        socket.onclose = ({ code, reason }) => reject(closed(code, reason));
        giveUp(signal, OPEN_TIMEOUT_MS, limit.signal, (error) => {
          reject(error);
          socket.close();
        });
        // Made at once: the package `ws` may have the greeting in the same turn.
        socket.onopen = () => resolve(new Session(new WebSocketTransport(socket)));
      });
    } finally {
      limit.abort();
    }
  }

  /**
   * Wait for the node's greeting, before `onmessage` and `onclose` are set.
   * @param {AbortSignal | null} signal
   * @returns {Promise<void>} rejects with an `ApiError`, or the signal's reason; the session is closed then
   */
  async greeted(signal = null) {
    const limit = new AbortController();
    try {
      await /** @type {Promise<void>} */ (
        new Promise((resolve, reject) => {
          const check = () => {
            if (this.parting) reject(refused(this.parting));
            else if (this.created) resolve();
          };
          this.onclose = (code, reason) => reject(closed(code, reason));
          this.onmessage = check;
          giveUp(signal, GREETING_TIMEOUT_MS, limit.signal, reject);
          check();
        })
      );
    } catch (error) {
      this.close();
      throw error;
    } finally {
      limit.abort();
    }
  }

  /**
   * Why the session was closed; null where an idle one was closed in order.
   * @param {number} code of `onclose`
   * @param {string} reason
   */
  lost(code, reason) {
    if (code === 1000) return null;
    return this.parting ? refused(this.parting) : closed(code, reason);
  }

  /**
   * Open a context; text may be written at once.
   * @param {SpeechOptions} options what the node does not decide itself
   */
  open(options) {
    const context = new Context(this, `turn-${++this.#opened}`);
    this.contexts.set(context.id, context);
    context.decoder = this.encoding?.decoder((chunk) => this.#hear(chunk, context)) ?? null;
    const output = this.encoding && { output: this.encoding.output };
    this.send({ type: "context.open", context_id: context.id, ...options, ...output });
    return context;
  }

  /** @param {object} message */
  send(message) {
    if (this.closed) return;
    this.ontraffic("out", message);
    this.transport.send(message);
  }

  close() {
    if (this.closed) return;
    this.closed = true;
    for (const context of this.contexts.values()) context.decoder?.close();
    this.transport.close();
  }

  /**
   * A text in parts within the node's limit for a message, never cut inside a character.
   * @param {string} text
   */
  split(text) {
    return messagesOf([...text], this.created);
  }

  /** @param {any} message */
  #receive(message) {
    this.ontraffic("in", message);
    const context = this.contexts.get(message.context_id);
    if (message.type === "session.created") this.created = message;
    if (message.type === "session.draining") this.parting = { code: "draining", message: "" };
    if (message.type === "error" && message.fatal) this.parting = message;
    if (message.type === "context.started" && context) {
      context.no = message.context_no;
      this.#byNo.set(message.context_no, context);
    }
    if (message.type === "context.done" && context) this.#over(context);
    if (message.type === "error" && context?.no === null) this.#refused(context);
    this.onmessage(message, context);
  }

  /** @param {Context} context */
  #over(context) {
    context.done = true;
    this.contexts.delete(context.id);
    if (context.no !== null) this.#byNo.delete(context.no);
    if (context.cancelled) context.decoder?.close();
    else context.decoder?.finish();
  }

  /**
   * A context refused before it started gets no `context.done`. Text sent after the refusal may have opened it again
   * with default settings: cancel that one.
   * @param {Context} context
   */
  #refused(context) {
    context.cancel(null);
    this.#over(context);
  }

  /** @param {Packet} packet */
  #audio(packet) {
    const context = this.#byNo.get(packet.contextNo);
    if (!context || context.cancelled) return;
    const { data, ...head } = packet;
    if (context.decoder) context.decoder.push(packet);
    else if (data.byteLength % 2) this.#leave();
    else this.#hear({ ...head, pcm: new Int16Array(data.buffer, data.byteOffset) }, context);
  }

  /** The node does not speak the protocol. */
  #leave() {
    this.transport.close();
    this.transport.onclose(GARBLED, "");
  }

  /**
   * @param {Chunk} chunk
   * @param {Context} context
   */
  #hear(chunk, context) {
    this.ontraffic("audio", chunk);
    if (!context.cancelled) this.onaudio(chunk, context);
  }
}

/**
 * Carries the messages and audio of a session.
 * @typedef {object} Transport
 * @property {(message: object) => void} send ignored once the transport is closed
 * @property {() => void} close idempotent; `onclose` does not follow
 * @property {(message: any) => void} onmessage
 * @property {(packet: Packet) => void} onaudio never called where the audio is a media track
 * @property {(code: number, reason: string) => void} onclose the other side, or the network, closed it
 * @property {(contextId: string) => number} [heardMs] where the audio is a media track: what has come of a context
 *
 * @typedef {{contextNo: number, flags: number, firstSample: number, data: Uint8Array<ArrayBuffer>}} Packet in the context's encoding
 * @typedef {{contextNo: number, flags: number, firstSample: number, pcm: Int16Array<ArrayBuffer>}} Chunk pcm at 24 kHz, mono
 *
 * @typedef {object} Decoder of one context
 * @property {(packet: Packet) => void} push
 * @property {() => void} finish no more packets come: closed once those that came are decoded; idempotent
 * @property {() => void} close at once; idempotent
 *
 * @typedef {object} Encoding
 * @property {object} output the field of `context.open` that asks for it
 * @property {(ondecoded: (chunk: Chunk) => void) => Decoder} decoder `ondecoded` is called in the order of the packets
 */

/** Closes a connection that is in use and silent, or that sends what is not of the protocol. @implements {Transport} */
export class WebSocketTransport {
  onmessage = (/** @type {any} */ _message) => {};
  onaudio = (/** @type {Packet} */ _packet) => {};
  onclose = (/** @type {number} */ _code, /** @type {string} */ _reason) => {};
  /** @type {WebSocket} */
  #socket;
  /** While it is in use. @type {ReturnType<typeof setInterval> | undefined} */
  #ticks;
  #usedAt = 0;
  /** Ticks since anything came. */
  #quiet = 0;
  /** Ids of contexts that the node has not ended. */
  #open = new Set();

  /** @param {WebSocket} socket an open one */
  constructor(socket) {
    this.#socket = socket;
    socket.onmessage = ({ data }) => this.#receive(data);
    socket.onclose = ({ code, reason }) => {
      clearInterval(this.#ticks);
      this.onclose(code, reason);
    };
  }

  /** @param {any} message */
  send(message) {
    if (this.#socket.readyState !== OPEN) return;
    this.#use();
    if (message.type === "context.open") this.#open.add(message.context_id);
    this.#socket.send(JSON.stringify(message));
  }

  close() {
    clearInterval(this.#ticks);
    this.#socket.onclose = this.#socket.onmessage = null;
    this.#socket.close(1000);
  }

  #use() {
    this.#usedAt = performance.now();
    this.#ticks ??= setInterval(() => this.#tick(), TICK_MS);
  }

  /** Ticks are counted, not time: where this program was held up, what came meanwhile is read before the next one. */
  #tick() {
    if (++this.#quiet > (this.#open.size ? MOST_QUIET_TICKS : MOST_IDLE_TICKS)) {
      this.#lose(LOST, "The node does not answer.");
    } else if (this.#quiet === ASK_TICKS) {
      this.#socket.send(JSON.stringify({ type: "ping", t: ALIVE }));
    } else if (this.#quiet < ASK_TICKS && performance.now() - this.#usedAt > IN_USE_MS) {
      clearInterval(this.#ticks);
      this.#ticks = undefined;
    }
  }

  /** @param {string | ArrayBuffer} data */
  #receive(data) {
    this.#quiet = 0;
    const come = typeof data === "string" ? messageOf(data) : packetOf(data);
    if (!come) return this.#lose(GARBLED, "");
    if ("type" in come && come.type === "pong" && come.t === ALIVE) return;
    this.#use();
    if ("type" in come && (come.type === "context.done" || come.type === "error")) this.#open.delete(come.context_id);
    if ("type" in come) this.onmessage(come);
    else if (come.kind === KIND_AUDIO) this.onaudio(come.packet);
  }

  /**
   * @param {number} code
   * @param {string} reason
   */
  #lose(code, reason) {
    this.close();
    this.onclose(code, reason);
  }
}

/**
 * What has to be in a message, of the fields that this client computes with.
 * @type {Record<string, (message: any) => boolean>}
 */
const SHAPES = {
  "context.started": ({ context_no }) => Number.isInteger(context_no),
  words: ({ words }) => Array.isArray(words) && words.every(isWord),
};

/** @param {any} word */
function isWord(word) {
  return [word?.start_ms, word?.end_ms, word?.char_start, word?.char_end].every(Number.isFinite);
}

/**
 * A message of the node; null where it is none. Types of newer nodes pass.
 * @param {string} text
 */
export function messageOf(text) {
  try {
    const message = JSON.parse(text);
    return typeof message?.type === "string" && (SHAPES[message.type]?.(message) ?? true) ? message : null;
  } catch {
    return null;
  }
}

/**
 * A binary message of the node; null where it is none.
 * @param {ArrayBuffer} buffer
 * @returns {{kind: number, packet: Packet} | null} kinds of newer nodes pass
 */
function packetOf(buffer) {
  if (buffer.byteLength < HEADER_BYTES) return null;
  const header = new DataView(buffer, 0, HEADER_BYTES);
  if (header.getUint8(0) !== VERSION) return null;
  const packet = {
    flags: header.getUint16(2, true),
    contextNo: header.getUint32(4, true),
    firstSample: Number(header.getBigUint64(8, true)),
    data: new Uint8Array(buffer, HEADER_BYTES),
  };
  return { kind: header.getUint8(1), packet };
}

/**
 * The frames of an Opus packet, each a packet by itself, of equal length in time (RFC 6716, section 3.2).
 * @param {Uint8Array<ArrayBuffer>} packet
 */
function framesOf(packet) {
  if (packet.length < 2 || (packet[0] & 3) !== 3 || packet[1] & 0x40) return [packet]; // not what libopus makes of 80 ms
  const count = packet[1] & 63;
  const sizes = [];
  let at = 2;
  for (let i = 1; i < count; i++) {
    let size = Math.floor((packet.length - 2) / count);
    if (packet[1] & 0x80) {
      size = packet[at++];
      if (size >= 252) size += 4 * packet[at++];
    }
    sizes.push(size);
  }
  return [...sizes, Infinity].map((size) => {
    const frame = packet.slice(at - 1, (at += size));
    frame[0] = packet[0] & ~3;
    return frame;
  });
}

/**
 * A text in parts within the node's limit for a message.
 * @param {string[]} characters
 * @param {any} created the node's greeting
 */
function messagesOf(characters, created) {
  const most = created?.limits?.text_message_chars ?? 4_000;
  const parts = [];
  for (let at = 0; at < characters.length; at += most) parts.push(characters.slice(at, at + most).join(""));
  return parts;
}

/**
 * Connect anew: to the address where a node asks to go, or the usual one.
 * @callback Dial
 * @param {string | null} address
 * @param {AbortSignal} [giveUp]
 * @returns {Promise<Session>} greeted; rejects with an `ApiError`, or the signal's reason
 *
 * @typedef {object} Link one connection of a `MovingTransport`
 * @property {Transport} transport
 * @property {any} created its node's greeting
 * @property {number} since when it was made, on performance.now's clock
 * @property {Map<number, MovingContext>} byNo its open contexts by the node's number of them
 * @property {boolean} refuses its node takes no new contexts
 * @property {string | null} address where it asks to go
 * @property {{code: string, message: string, retry_after_ms?: number} | null} fatal why the node ends it, if it said so
 * @property {[number, string] | null} end code and reason of its end; null while it lives
 */

/**
 * A connection and its successors, as one. The next is made before the old one is left, whose contexts end where they
 * are; contexts of one that is lost go on at the next. Closed once none is found in time.
 * @implements {Transport}
 */
export class MovingTransport {
  onmessage = (/** @type {any} */ _message) => {};
  onaudio = (/** @type {Packet} */ _packet) => {};
  onclose = (/** @type {number} */ _code, /** @type {string} */ _reason) => {};
  #dial;
  #resumes;
  /** For new contexts; alive, or the one that was lost last. @type {Link} */
  #link;
  /** Contexts that are not done. @type {Map<string, MovingContext>} */
  #contexts = new Map();
  #opened = 0;
  /** What `session.update` has set. @type {Record<string, any>} */
  #defaults = {};
  /** Ends the search for another node; null while none is made. @type {AbortController | null} */
  #search = null;
  /** When contexts that wait for that have waited enough. @type {ReturnType<typeof setTimeout> | undefined} */
  #deadline;
  /** Attempts, and connections that were short, in a row. */
  #failures = 0;
  #closed = false;

  /**
   * @param {Session} session greeted; its connection belongs to this one from now on
   * @param {Dial} dial
   * @param {(output: any) => boolean} resumes whether contexts with this `output` go on when their connection is lost
   */
  constructor(session, dial, resumes = () => true) {
    this.#dial = dial;
    this.#resumes = resumes;
    this.#link = this.#join(session);
  }

  /** @param {any} message */
  send(message) {
    if (message.type === "context.open") return this.#open(message);
    if (message.type === "session.update") Object.assign(this.#defaults, message.session);
    const context = this.#contexts.get(message.context_id);
    if (context) context.send(message);
    else if (!this.#link.end) this.#link.transport.send(message);
  }

  close() {
    this.#shut();
    for (const link of this.#links()) link.transport.close();
    this.#contexts.clear();
  }

  /** Those that live. */
  #links() {
    const links = new Set([this.#link]);
    for (const { link } of this.#contexts.values()) if (link) links.add(link);
    return [...links].filter(({ end }) => !end);
  }

  #shut() {
    this.#closed = true;
    this.#search?.abort();
    clearTimeout(this.#deadline);
    for (const context of this.#contexts.values()) context.close();
  }

  /** @param {any} message `context.open` */
  #open(message) {
    // A seed of its own, so that the voice stays the same on every node.
    const seed = message.seed ?? this.#defaults.seed ?? crypto.getRandomValues(new Uint32Array(1))[0];
    const context = new MovingContext({ ...message, seed }, ++this.#opened, this.#defaults, {
      message: (told) => this.onmessage(told),
      audio: (packet) => this.onaudio(packet),
      over: () => this.#over(context),
    });
    this.#contexts.set(message.context_id, context);
    if (this.#link.end || this.#link.refuses) this.#hurry();
    else context.begin(this.#link);
  }

  /** @param {MovingContext} context */
  #over(context) {
    this.#contexts.delete(context.id);
    const { link } = context;
    if (link && link !== this.#link) this.#retire(link);
  }

  /** Close one that was left, once its last context has ended. @param {Link} link */
  #retire(link) {
    if (!link.end && this.#on(link).length === 0) link.transport.close();
  }

  /** @param {Link | null} link its contexts; null: those that wait */
  #on(link) {
    return [...this.#contexts.values()].filter((context) => context.link === link);
  }

  /**
   * Go on over this connection.
   * @param {Session} session
   */
  #join({ transport, created, parting, closed }) {
    /** @type {Link} */
    const link = {
      transport,
      created,
      since: performance.now(),
      byNo: new Map(),
      refuses: false,
      address: null,
      fatal: null,
      end: null,
    };
    const old = this.#link;
    this.#link = link;
    transport.onmessage = (message) => this.#receive(link, message);
    transport.onaudio = (packet) => link.byNo.get(packet.contextNo)?.hear(packet);
    transport.onclose = (code, reason) => this.#lose(link, code, reason);
    clearTimeout(this.#deadline);
    // Not within the caller's call: the first greeting comes when it has set `onmessage`.
    queueMicrotask(() => this.#closed || this.onmessage(created));
    if (Object.keys(this.#defaults).length) transport.send({ type: "session.update", session: this.#defaults });
    for (const context of this.#on(null)) context.begin(link);
    if (old) this.#retire(old);
    if (closed) this.#lose(link, LOST, "");
    else if (parting) this.#leave(link, "shutdown", null);
    return link;
  }

  /**
   * @param {Link} link
   * @param {any} message
   */
  #receive(link, message) {
    const context = this.#contexts.get(message.context_id);
    if (message.type === "session.draining") this.#leave(link, message.reason, message.address ?? null);
    else if (message.type === "error" && message.fatal) link.fatal = message;
    else if (context?.link === link) context.receive(message);
    else this.onmessage(message);
  }

  /**
   * The node asks to go.
   * @param {Link} link
   * @param {string | undefined} reason
   * @param {string | null} address
   */
  #leave(link, reason, address) {
    link.address = address;
    link.refuses = reason !== "full";
    if (link === this.#link) this.#find(link);
  }

  /**
   * @param {Link} link
   * @param {number} code
   * @param {string} reason
   */
  #lose(link, code, reason) {
    link.end = [code, reason];
    const contexts = this.#on(link);
    for (const context of contexts) {
      if (link.fatal) context.fail(link.fatal);
      else if (this.#resumes(context.output)) context.lose();
      else context.fail(CONNECTION_LOST);
    }
    if (link !== this.#link) {
      if (!this.#link.end) for (const context of this.#on(null)) context.begin(this.#link);
    } else if (code === 1000 && !contexts.length && !this.#search) {
      this.#end(null); // it was idle
    } else {
      this.#failures = performance.now() - link.since > CALM_MS ? 0 : this.#failures + 1;
      this.#hurry();
      this.#find(link);
    }
  }

  /** Something waits for another node. */
  #hurry() {
    clearTimeout(this.#deadline);
    this.#deadline = setTimeout(() => {
      if (this.#link.end) this.#search?.abort();
      else for (const context of this.#on(null)) context.fail(DRAINING);
    }, RENEW_MS);
  }

  /**
   * Find the connection after this one: while it lives, or until the deadline.
   * @param {Link} old
   */
  async #find(old) {
    if (this.#search || this.#closed) return;
    const search = (this.#search = new AbortController());
    let why = null;
    for (let toAddress = true; !search.signal.aborted; toAddress = !toAddress) {
      try {
        await pause(Math.min(RETRY_MS * 2 ** this.#failures, MOST_RETRY_MS), search.signal);
        const giveUp = AbortSignal.any([search.signal, AbortSignal.timeout(RENEW_MS / 2)]);
        const session = await this.#dial(toAddress ? old.address : null, giveUp);
        if (search.signal.aborted) {
          session.close();
          break;
        }
        this.#search = null;
        this.#join(session);
        return;
      } catch (error) {
        if (error instanceof ApiError) why = error;
        this.#failures++;
      }
    }
    if (!this.#closed) this.#end(why);
  }

  /** It does not go on. @param {ApiError | null} why the last attempt failed */
  #end(why) {
    const { end, fatal } = this.#link;
    this.#shut();
    const known = why && why.code !== "unreachable";
    const told = known ? { code: why.code, message: why.message, retry_after_ms: why.retryAfterMs ?? 0 } : fatal;
    if (told) this.onmessage({ ...told, type: "error", fatal: true });
    for (const link of this.#links()) link.transport.close();
    const [code, reason] = end ?? [LOST, ""];
    this.onclose(code, reason);
  }
}

const CONNECTION_LOST = { code: "connection_lost", message: "The connection was lost; this utterance cannot go on." };
const DRAINING = { code: "draining", message: "The node is shutting down, and no other answers." };

/**
 * A context in parts on several nodes, as one on one node. The session gets a word's sound when all of it has come,
 * unless the listener would have to wait: the beginning of a word whose node is lost is then dropped, and the word is said
 * from its start by the next node.
 */
class MovingContext {
  /** Where it is; null while it waits. @type {Link | null} */
  link = null;
  #open;
  #no;
  #tell;
  /** Where the part on `link` begins: in the text, characters; in the sound, samples. */
  #firstChar = 0;
  #firstSample = 0;
  /** Of its sound: samples a second, bytes of one, or 0 of Opus, of which each message is a packet. */
  #rate;
  #width;
  #packetSamples = 0;
  /** Without word times, and in encodings that cannot be joined, it cannot go on elsewhere. */
  #canResume;
  #losses = 0;
  /** The node has started the context, and the part of it. */
  #hasBegun = false;
  #partHasBegun = false;
  /** Of the whole: the text's characters, whether it ended, and unanswered flushes with their places in it. */
  #text = /** @type {string[]} */ ([]);
  #ended = false;
  #cancelled = false;
  #isOver = false;
  #flushes = /** @type {{at: number, id: string}[]} */ ([]);
  /** Words with their final times, and the latest of all by place. */
  #aligned = /** @type {Word[]} */ ([]);
  #words = /** @type {Map<number, Word>} */ (new Map());
  /** Places of marks that were told. */
  #marks = new Set();
  /** What came from the first sound on that waits for the end of its word. @type {(Packet | {type: string})[]} */
  #held = [];
  /** Samples that came, and that were given. */
  #received = 0;
  #given = 0;
  /** When the first is heard, but for pauses of the writer, on performance.now's clock. @type {number | null} */
  #heardFrom = null;
  #wasLast = false;
  /** What the listener has heard, as the caller says; null: it does not. @type {number | null} */
  #playedMs = null;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  #patience;

  /**
   * @param {any} open its first message
   * @param {number} no its number for the session
   * @param {Record<string, any>} defaults of the session
   * @param {{message: (message: any) => void, audio: (packet: Packet) => void, over: () => void}} tell
   */
  constructor(open, no, defaults, tell) {
    this.#open = open;
    this.#no = no;
    this.#tell = tell;
    /** What it asks for. */
    this.output = { ...defaults.output, ...open.output };
    const { encoding = "pcm_s16le", sample_rate = SAMPLE_RATE, framing = "binary" } = this.output;
    this.#rate = sample_rate;
    this.#width = WIDTHS[encoding] ?? 0;
    const isTimed = (open.timestamps ?? defaults.timestamps) !== "none";
    this.#canResume = isTimed && framing === "binary" && (encoding === "opus" || this.#width > 0);
  }

  get id() {
    return this.#open.context_id;
  }

  get #firstMs() {
    return Math.round(this.#msOf(this.#firstSample));
  }

  /**
   * Speak on this connection what is left of it.
   * @param {Link} link
   */
  begin(link) {
    const rest = this.#text.slice(this.#firstChar);
    if (this.#losses && this.#ended && !this.#flushes.length && !rest.join("").trim()) return this.#finish("end");
    this.link = link;
    this.#packetSamples = this.#samplesOf(link.created.frame_ms ?? 0);
    this.#partHasBegun = false;
    link.transport.send(this.#open);
    let place = this.#firstChar;
    const write = (/** @type {number} */ to) => {
      const texts = messagesOf(this.#text.slice(place, to), link.created);
      for (const text of texts) this.#say("text.append", { text });
      place = Math.max(place, to);
    };
    for (const { at, id } of this.#flushes) {
      write(at);
      this.#say("context.flush", { flush_id: id });
    }
    write(this.#text.length);
    if (this.#ended) this.#say("context.end");
  }

  /** @param {any} message of the session */
  send(message) {
    if (message.type === "text.append") {
      for (const character of message.text) this.#text.push(character);
    } else if (message.type === "context.flush") {
      this.#flushes.push({ at: this.#text.length, id: message.flush_id });
    } else if (message.type === "context.end") {
      this.#ended = true;
    } else if (message.type === "context.cancel" || message.type === "playback.ack") {
      this.#playedMs = message.played_ms ?? this.#playedMs;
      if (message.type === "context.cancel") return this.#cancel(message);
      if (message.played_ms < this.#firstMs) return;
      message = { ...message, played_ms: message.played_ms - this.#firstMs };
    }
    this.link?.transport.send(message);
  }

  /** @param {any} message of the node */
  receive(message) {
    switch (message.type) {
      case "context.started":
        this.link?.byNo.set(message.context_no, this);
        this.#partHasBegun = true;
        if (!this.#hasBegun) this.#tell.message({ ...message, context_no: this.#no });
        this.#hasBegun = true;
        break;
      case "words":
        this.#learn(message);
        break;
      case "mark": {
        const { at_ms, char_start } = message;
        this.#hold({ ...message, at_ms: at_ms + this.#firstMs, char_start: char_start + this.#firstChar });
        break;
      }
      case "context.flushed":
        this.#hold({ ...message, audio_ms: message.audio_ms + this.#firstMs });
        break;
      case "context.cancelled":
        this.#tell.message(this.#firstSample ? this.#cut(message) : message);
        break;
      case "context.done":
        this.link?.byNo.delete(message.context_no);
        this.#release(Infinity);
        this.#over({ ...message, context_no: this.#no, audio_ms: message.audio_ms + this.#firstMs });
        break;
      case "error":
        this.#release(Infinity);
        // The session ends only a context that is refused before it began. Others need an end.
        if (!this.#hasBegun) this.#over(message);
        else {
          this.#tell.message(message);
          if (!this.#partHasBegun) this.#finish("error");
        }
        break;
      default:
        this.#tell.message(message);
    }
  }

  /** @param {Packet} packet */
  hear(packet) {
    const firstSample = packet.firstSample + this.#firstSample;
    const heard = { ...packet, contextNo: this.#no, firstSample };
    this.#received = this.#end(heard);
    this.#hold(heard);
  }

  /** Its connection is lost: it waits for another, or ends. */
  lose() {
    const { transport } = /** @type {Link} */ (this.link);
    this.link = null;
    if (transport.heardMs) {
      // A track goes on in pauses of the writer.
      const end = Math.max(this.#firstSample, ...this.#aligned.map(({ end_ms }) => this.#samplesOf(end_ms)));
      const heard = this.#firstSample + this.#samplesOf(transport.heardMs(this.id));
      this.#received = this.#given = Math.min(heard, end);
    }
    if (this.#cancelled) return this.#finishCancelled();
    if (!this.#canResume || this.#losses++ === MOST_LOSSES) return this.fail(CONNECTION_LOST);
    clearTimeout(this.#patience);
    this.#giveFrames(this.#whole());
    this.#held = [];
    this.#aligned = this.#aligned.filter(({ end_ms }) => this.#samplesOf(end_ms) <= this.#received);
    this.#firstChar = Math.max(0, ...this.#aligned.map(({ char_end }) => char_end));
    this.#received = this.#firstSample = this.#given;
  }

  /**
   * End it, here.
   * @param {{code: string, message: string, retry_after_ms?: number}} error
   */
  fail({ code, message, retry_after_ms = 0 }) {
    this.link = null;
    this.#release(Infinity);
    const error = { type: "error", code, message, context_id: this.id, fatal: false, retry_after_ms };
    if (!this.#hasBegun) return this.#over(error);
    this.#tell.message(error);
    this.#finish("error");
  }

  /** Nothing more comes, or is wanted. */
  close() {
    clearTimeout(this.#patience);
    this.#held = [];
  }

  /**
   * @param {string} type
   * @param {object} fields
   */
  #say(type, fields = {}) {
    this.link?.transport.send({ type, context_id: this.id, ...fields });
  }

  /** @param {any} message */
  #cancel(message) {
    this.#cancelled = true;
    this.close();
    if (!this.link) return this.#finishCancelled();
    const { played_ms } = message;
    this.link.transport.send(played_ms ? { ...message, played_ms: Math.max(0, played_ms - this.#firstMs) } : message);
  }

  #finishCancelled() {
    if (this.#isOver) return;
    const generatedMs = Math.round(this.#msOf(this.#given)) - this.#firstMs;
    const playedMs = this.#heardFrom === null ? 0 : performance.now() - this.#heardFrom - this.#firstMs;
    const part = { played_ms: Math.min(playedMs, generatedMs), generated_ms: generatedMs };
    this.#tell.message(this.#cut({ type: "context.cancelled", context_id: this.id, ...part }));
    this.#finish("cancelled");
  }

  /**
   * What was heard of the whole.
   * @param {any} message `context.cancelled` of this part
   */
  #cut(message) {
    const playedMs = this.#playedMs ?? message.played_ms + this.#firstMs;
    const words = [...this.#words.values()].sort((a, b) => a.char_start - b.char_start);
    return {
      ...message,
      played_ms: Math.round(playedMs),
      generated_ms: message.generated_ms + this.#firstMs,
      ...heardText(this.#text, words, playedMs),
    };
  }

  /** End it here, where no node does. @param {string} reason of `context.done` */
  #finish(reason) {
    if (reason === "end" && !this.#wasLast) {
      this.#give({ contextNo: this.#no, flags: LAST, firstSample: this.#given, data: new Uint8Array(0) }, this.#given);
    }
    const told = { audio_ms: Math.round(this.#msOf(this.#given)), ttfa_ms: null, rtf: null, cut: [] };
    this.#over({ type: "context.done", context_id: this.id, context_no: this.#no, reason, ...told });
  }

  /** @param {any} message the last one */
  #over(message) {
    this.#isOver = true;
    this.close();
    this.#tell.message(message);
    this.#tell.over();
  }

  /** @param {any} message `words` */
  #learn(message) {
    const words = message.words.map((/** @type {Word} */ word) => ({
      ...word,
      start_ms: word.start_ms + this.#firstMs,
      end_ms: word.end_ms + this.#firstMs,
      char_start: word.char_start + this.#firstChar,
      char_end: word.char_end + this.#firstChar,
    }));
    for (const word of words) this.#words.set(word.char_start, word);
    if (message.kind === "aligned") this.#aligned.push(...words);
    this.#tell.message({ ...message, words });
  }

  /** @param {Packet | {type: string}} item */
  #hold(item) {
    if (this.#cancelled) return;
    this.#held.push(item);
    this.#settle();
  }

  /** Give what the listener may have now, and look again when the rest has waited enough. */
  #settle() {
    clearTimeout(this.#patience);
    this.#release(this.#canResume ? this.#whole() : Infinity);
    if (!this.#held.length) return;
    const leftMs = this.#heardFrom === null ? 0 : this.#heardFrom + this.#msOf(this.#given) - MARGIN_MS - performance.now();
    if (leftMs <= 0) this.#release(this.#received);
    else this.#patience = setTimeout(() => this.#settle(), leftMs);
  }

  /** The samples that came, without those of a word of which more is to come. */
  #whole() {
    const cut = this.#aligned.findLast(({ start_ms }) => this.#samplesOf(start_ms) < this.#received);
    return cut && this.#samplesOf(cut.end_ms) > this.#received ? this.#samplesOf(cut.start_ms) : this.#received;
  }

  /** The sample behind it. @param {Packet} packet */
  #end({ firstSample, data }) {
    return firstSample + (this.#width ? data.length / this.#width : data.length && this.#packetSamples);
  }

  /** @param {number} samples */
  #msOf(samples) {
    return (samples / this.#rate) * 1000;
  }

  /** @param {number} ms */
  #samplesOf(ms) {
    return Math.round((ms * this.#rate) / 1000);
  }

  /** Give what is held up to this sample, and what is not sound before and at it. @param {number} until */
  #release(until) {
    for (let item; (item = this.#held[0]); this.#held.shift()) {
      if (!("data" in item)) {
        this.#told(item);
        continue;
      }
      const end = this.#end(item);
      if (end > until) {
        const bytes = this.#width * (until - item.firstSample);
        if (bytes <= 0) return;
        this.#held[0] = { ...item, firstSample: until, data: item.data.slice(bytes) };
        return this.#give({ ...item, flags: 0, data: item.data.slice(0, bytes) }, until);
      }
      this.#give(item, end);
    }
  }

  /** Give the frames of the held Opus packet up to this sample, to half a frame. @param {number} until */
  #giveFrames(until) {
    const packet = /** @type {Packet | undefined} */ (this.#held.find((item) => "data" in item));
    if (this.#width || !packet?.data.length) return;
    const frames = framesOf(packet.data);
    const samples = (this.#end(packet) - packet.firstSample) / frames.length;
    for (const data of frames.slice(0, Math.max(0, Math.round((until - packet.firstSample) / samples)))) {
      this.#give({ ...packet, flags: 0, data }, packet.firstSample + samples);
      packet.firstSample += samples;
    }
  }

  /**
   * @param {Packet} packet
   * @param {number} end the sample behind it
   */
  #give(packet, end) {
    // Later than before where the listener has played all and waits.
    const heardFrom = performance.now() - this.#msOf(packet.firstSample);
    if (packet.data.length) this.#heardFrom = Math.max(this.#heardFrom ?? heardFrom, heardFrom);
    this.#given = end;
    this.#wasLast = Boolean(packet.flags & LAST);
    this.#tell.audio(packet);
  }

  /** @param {any} message */
  #told(message) {
    if (message.type === "context.flushed") this.#flushes.shift();
    else if (this.#marks.has(message.char_start)) return;
    else this.#marks.add(message.char_start);
    this.#tell.message(message);
  }
}

/**
 * What was heard of a text, and what not, both without its tags, which are in no word. A word is heard once half of it
 * is played: the rule of agent_tts/protocol/heard.py.
 * @param {string[]} text its characters
 * @param {Word[]} words
 * @param {number} playedMs
 */
function heardText(text, words, playedMs) {
  // Times of different age need not be in order: a word is heard when all before it are, too.
  const unheard = words.findIndex(({ start_ms, end_ms }) => (start_ms + end_ms) / 2 > playedMs);
  const heard = unheard < 0 ? words.length : unheard;
  const parts = [];
  let end = 0;
  let last = "";
  for (const { word, char_start, char_end } of words) {
    const gap = text.slice(end, char_start).join("");
    parts.push((end || !gap.trim() ? spaceOf(gap, last, word) : "") + word);
    end = char_end;
    last = word;
  }
  const rest = text.slice(end).join("");
  parts.push(words.length && rest.trim() ? "" : rest);
  return { heard_text: parts.slice(0, heard).join(""), unheard_text: parts.slice(heard).join("") };
}

// A letter of a script without spaces between words, before and behind what belongs to its word.
const UNSPACED =
  String.raw`(?![\u02b0-\u02ff\u0e33\u0eb3])(?=[\p{L}\p{Nl}])[\p{scx=Han}\p{scx=Hira}\p{scx=Kana}\p{scx=Bopo}\p{scx=Thai}` +
  String.raw`\p{scx=Laoo}\p{scx=Tibt}\p{scx=Mymr}\p{scx=Khmr}\p{scx=Tale}\p{scx=Talu}\p{scx=Lana}\p{scx=Bali}\p{scx=Yiii}\p{scx=Java}\p{scx=Tavt}]`;
// Two words with a NUL between them of which one has no space beside it.
const JOINED = new RegExp(String.raw`${UNSPACED}[^\p{L}\p{N}\s]*\0|\0[^\p{L}\p{N}\s]{0,4}${UNSPACED}`, "u");

/**
 * The white space between two words: the rule of agent_tts/text/words.py.
 * @param {string} gap what stands between them in the text as it was sent, tags included
 * @param {string} before
 * @param {string} after
 */
function spaceOf(gap, before, after) {
  const tags = gap.trim();
  if (!tags) return gap;
  const [left] = gap.split(tags, 1);
  return left || gap.slice(tags.length) || (JOINED.test(`${before.slice(-64)}\0${after}`) ? "" : " ");
}

/**
 * @param {number} ms for a random time up to this
 * @param {AbortSignal} signal
 * @returns {Promise<void>} rejects with the signal's reason
 */
function pause(ms, signal) {
  return new Promise((resolve, reject) => {
    const stop = () => reject(signal.reason);
    if (signal.aborted) return stop();
    const timer = setTimeout(() => resolve(signal.removeEventListener("abort", stop)), ms * Math.random());
    signal.addEventListener("abort", () => (clearTimeout(timer), stop()), { once: true });
  });
}

/**
 * Call `fail` once, when the signal aborts or the time is over.
 * @param {AbortSignal | null | undefined} signal
 * @param {number} timeoutMs
 * @param {AbortSignal} settled no more calls; nothing is left waiting
 * @param {(error: unknown) => void} fail
 */
function giveUp(signal, timeoutMs, settled, fail) {
  const timer = setTimeout(() => fail(new ApiError(0, "unreachable", "The node does not answer.")), timeoutMs);
  settled.addEventListener("abort", () => clearTimeout(timer));
  if (signal?.aborted) fail(signal.reason);
  signal?.addEventListener("abort", () => fail(signal.reason), { signal: settled });
}

/** @param {{code: string, message: string, retry_after_ms?: number}} error of the node */
function refused({ code, message, retry_after_ms }) {
  return new ApiError({ unauthorized: 401, forbidden: 403 }[code] ?? 503, code, message, retry_after_ms);
}

/**
 * @param {number} code of a WebSocket's close, as far as a browser says why
 * @param {string} reason
 */
function closed(code, reason) {
  if (code === 1008) return new ApiError(401, "unauthorized", reason || "The node asks for a key.");
  if (code === 1013) return new ApiError(503, "at_capacity", reason || "The node is at capacity.", 2_000);
  if (code === 1012) return new ApiError(503, "draining", reason || "The node is shutting down.", 2_000);
  if (code === GARBLED) return new ApiError(502, "malformed", reason || `The node does not speak ${PROTOCOL}.`);
  return new ApiError(0, "unreachable", reason || "The node does not answer.");
}
