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
export declare const SAMPLE_RATE = 24000;
/** An error answer of the node. */
export declare class ApiError extends Error {
    status: number;
    code: string;
    retryAfterMs: number | null;
    /**
     * @param {number} status HTTP status; 0 when the node could not be reached
     * @param {string} code code of the wire protocol, or "unreachable"
     * @param {string} message
     * @param {number | null} retryAfterMs
     */
    constructor(status: number, code: string, message: string, retryAfterMs?: number | null);
}
export type ConnectOptions = {
    /**
     * a key of the node; not for a browser: give it a token
     */
    apiKey?: string;
    /**
     * of `POST /v1/tokens`, good once; with `moves` a
     * function that gets one for each connection
     */
    token?: string | (() => string | Promise<string>);
    /**
     * it goes to another node when its node asks it to, or is lost: open utterances then go on
     * from the first word that has not come whole. `url` is that of a load balancer, or nodes tell theirs (`public_url`)
     */
    moves?: boolean;
    /**
     * gives up
     */
    signal?: AbortSignal;
    /**
     * another class, for a runtime without one: that of the package `ws`
     */
    WebSocket?: typeof WebSocket;
};
export type SpeechOptions = {
    model?: string | null;
    voice?: string | null;
    /**
     * a speaker's vector, in place of a voice
     */
    speaker_embedding?: number[] | null;
    language?: string;
    instructions?: string | null;
    seed?: number | null;
    speed?: number;
    pitch?: number;
    sampling?: Sampling;
    /**
     * how far audio runs ahead of real time; null: as fast as it can be made
     */
    lead_ms?: number | null;
    /**
     * silence of a voice before its speech that is sent; null: all
     */
    leading_silence_ms?: number | null;
    /**
     * LUFS that voices are brought to; null: their own
     */
    loudness?: number | null;
    /**
     * make markdown, links and emoji speakable
     */
    clean?: boolean;
    normalize?: boolean | null;
    /**
     * whether tags are obeyed, or are text
     */
    markup?: "auto" | "none";
    text_mode?: "live" | "whole" | "auto";
    /**
     * how words are said
     */
    lexicon?: {
        [written: string]: string | object;
    } | null;
    timestamps?: "word" | "none";
};
export type Sampling = {
    temperature?: number | null;
    top_k?: number | null;
    top_p?: number | null;
    repetition_penalty?: number | null;
};
export type AudioEvent = {
    type: "audio";
    pcm: Int16Array;
    firstSample: number;
    last: boolean;
};
export type WordsEvent = {
    type: "words";
    kind: "estimated" | "aligned";
    words: Word[];
};
export type MarkEvent = {
    type: "mark";
    name: string;
    at_ms: number;
    char_start: number;
};
export type StartedEvent = {
    type: "context.started";
    context_no: number;
    queue_ms: number;
};
export type FlushedEvent = {
    type: "context.flushed";
    flush_id: string;
    audio_ms: number;
};
export type CancelledEvent = {
    type: "context.cancelled";
    played_ms: number;
    generated_ms: number;
    heard_text: string;
    unheard_text: string;
};
export type DoneEvent = {
    type: "context.done";
    reason: "end" | "cancelled" | "length" | "error";
    audio_ms: number;
    ttfa_ms: number | null;
    rtf: number | null;
};
export type WarningEvent = {
    type: "warning";
    code: string;
    message: string;
    fields: string[];
};
export type SpeechEvent = AudioEvent | WordsEvent | MarkEvent | StartedEvent | FlushedEvent | CancelledEvent | DoneEvent | WarningEvent;
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
export declare function connect(url: string | URL, { apiKey, token, moves, signal, WebSocket: Socket }?: ConnectOptions): Promise<SpeechNode>;
/** A connection to a node: any number of utterances, one after another or at once. Made by `connect`. */
export declare class SpeechNode {
    #private;
    /** The connection is gone; open utterances have failed. @type {(error: ApiError) => void} */
    onclose: (error: ApiError) => void;
    /** @param {Session} session greeted */
    constructor(session: Session);
    /** What the node told first: engine, model, limits. */
    get greeting(): any;
    /**
     * Begin an utterance. Text may be written at once.
     * @param {SpeechOptions} options
     */
    open(options?: SpeechOptions): Speech;
    /** Close the connection; open utterances fail. Idempotent. */
    close(): void;
}
/** One utterance: text goes in as it is written, events come out as they arrive; iterate over them once. */
export declare class Speech {
    #private;
    /** @param {Context} context */
    constructor(context: Context);
    /** More text, verbatim: any split, spaces matter. @param {string} text */
    write(text: string): void;
    /** Speak all text so far as complete words; `context.flushed` follows its audio. @param {string} flushId */
    flush(flushId?: string): void;
    /** No more text. */
    end(): void;
    /** What the listener has heard, which makes `heard_text` exact. @param {number} playedMs */
    acknowledge(playedMs: number): void;
    /**
     * Barge-in: no more audio comes; `context.cancelled` tells what was heard.
     * @param {number | null} playedMs what was heard; null: what was acknowledged
     */
    cancel(playedMs?: number | null): void;
    /** Events up to `context.done`; leaving the loop before it cancels. Throws the `ApiError` that ended the utterance. */
    [Symbol.asyncIterator](): AsyncGenerator<SpeechEvent, void, unknown>;
    /** For `SpeechNode`. @param {SpeechEvent} event */
    push(event: SpeechEvent): void;
    /**
     * For `SpeechNode`.
     * @param {ApiError} error thrown to the reader after the events so far
     * @param {boolean} isOver
     */
    fail(error: ApiError, isOver: boolean): void;
    /** For `SpeechNode`: nothing more comes. @param {ApiError | null} error */
    finish(error?: ApiError | null): void;
}
export type Word = {
    word: string;
    start_ms: number;
    end_ms: number;
    char_start: number;
    char_end: number;
};
export type ErrorMessage = {
    type: string;
    code: string;
    message: string;
    context_id?: string;
    retry_after_ms?: number;
    fatal?: boolean;
};
/**
 * @typedef {{word: string, start_ms: number, end_ms: number, char_start: number, char_end: number}} Word
 * @typedef {{type: string, code: string, message: string, context_id?: string, retry_after_ms?: number, fatal?: boolean}} ErrorMessage
 */
/** One utterance: text goes in as it is written. */
export declare class Context {
    #private;
    id: string;
    /** Number of this context in audio headers; null until the node has started it. @type {number | null} */
    no: number | null;
    /** When the first text left, on performance.now's clock. @type {number | null} */
    sentAt: number | null;
    ended: boolean;
    /** Cancelled here: audio that still arrives is dropped. */
    cancelled: boolean;
    /** The context has ended. */
    done: boolean;
    /** Null where the sound comes as PCM. @type {Decoder | null} */
    decoder: Decoder | null;
    /**
     * @param {Session} session
     * @param {string} id
     */
    constructor(session: Session, id: string);
    /** Verbatim: any split, spaces matter. @param {string} text */
    append(text: string): void;
    /** Speak all text so far without waiting for more. @param {string} flushId */
    flush(flushId: string): void;
    /** No more text. */
    end(): void;
    /**
     * Cancel (barge-in). `playedMs` lets the node work out which text was heard.
     * @param {number | null} playedMs null where the node itself plays the audio
     */
    cancel(playedMs: number | null): void;
    /** @param {number} playedMs what the listener has heard */
    acknowledge(playedMs: number): void;
}
export declare class Session {
    #private;
    /** The node's first message; null until it is there. @type {any} */
    created: any;
    /** Contexts that are not done. @type {Map<string, Context>} */
    contexts: Map<string, Context>;
    /** Called for every message of the node, with its context. */
    onmessage: (/** @type {any} */ _message: any, /** @type {Context | undefined} */ _context: Context | undefined) => void;
    onaudio: (/** @type {Chunk} */ _chunk: Chunk, /** @type {Context} */ _context: Context) => void;
    onclose: (/** @type {number} */ _code: number, /** @type {string} */ _reason: string) => void;
    /** Sees everything that is sent and received. @type {(direction: "out" | "in" | "audio", what: any) => void} */
    ontraffic: (direction: "out" | "in" | "audio", what: any) => void;
    closed: boolean;
    /** How the sound of new contexts is encoded; null: PCM. @type {Encoding | null} */
    encoding: Encoding | null;
    /** Why the node is going to close the session, if it said so. @type {{code: string, message: string, retry_after_ms?: number} | null} */
    parting: {
        code: string;
        message: string;
        retry_after_ms?: number;
    } | null;
    /** Open; used only here, and by who takes it over. */
    transport: Transport;
    /** @param {Transport} transport */
    constructor(transport: Transport);
    /**
     * Open a session over a WebSocket; `greeted` comes next.
     * @param {URL} url of the socket
     * @param {AbortSignal | null} signal
     * @param {typeof WebSocket} Socket
     * @returns {Promise<Session>} rejects with an `ApiError`, or the signal's reason
     */
    static open(url: URL, signal?: AbortSignal | null, Socket?: typeof WebSocket): Promise<Session>;
    /**
     * Wait for the node's greeting, before `onmessage` and `onclose` are set.
     * @param {AbortSignal | null} signal
     * @returns {Promise<void>} rejects with an `ApiError`, or the signal's reason; the session is closed then
     */
    greeted(signal?: AbortSignal | null): Promise<void>;
    /**
     * Why the session was closed; null where an idle one was closed in order.
     * @param {number} code of `onclose`
     * @param {string} reason
     */
    lost(code: number, reason: string): ApiError | null;
    /**
     * Open a context; text may be written at once.
     * @param {SpeechOptions} options what the node does not decide itself
     */
    open(options: SpeechOptions): Context;
    /** @param {object} message */
    send(message: object): void;
    close(): void;
    /**
     * A text in parts within the node's limit for a message, never cut inside a character.
     * @param {string} text
     */
    split(text: string): string[];
}
export type Transport = {
    /**
     * ignored once the transport is closed
     */
    send: (message: object) => void;
    /**
     * idempotent; `onclose` does not follow
     */
    close: () => void;
    onmessage: (message: any) => void;
    /**
     * never called where the audio is a media track
     */
    onaudio: (packet: Packet) => void;
    /**
     * the other side, or the network, closed it
     */
    onclose: (code: number, reason: string) => void;
    /**
     * where the audio is a media track: what has come of a context
     */
    heardMs?: (contextId: string) => number;
};
export type Packet = {
    contextNo: number;
    flags: number;
    firstSample: number;
    data: Uint8Array<ArrayBuffer>;
};
export type Chunk = {
    contextNo: number;
    flags: number;
    firstSample: number;
    pcm: Int16Array<ArrayBuffer>;
};
export type Decoder = {
    push: (packet: Packet) => void;
    /**
     * no more packets come: closed once those that came are decoded; idempotent
     */
    finish: () => void;
    /**
     * at once; idempotent
     */
    close: () => void;
};
export type Encoding = {
    /**
     * the field of `context.open` that asks for it
     */
    output: object;
    /**
     * `ondecoded` is called in the order of the packets
     */
    decoder: (ondecoded: (chunk: Chunk) => void) => Decoder;
};
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
export declare class WebSocketTransport implements Transport {
    #private;
    onmessage: (/** @type {any} */ _message: any) => void;
    onaudio: (/** @type {Packet} */ _packet: Packet) => void;
    onclose: (/** @type {number} */ _code: number, /** @type {string} */ _reason: string) => void;
    /** @param {WebSocket} socket an open one */
    constructor(socket: WebSocket);
    /** @param {any} message */
    send(message: any): void;
    close(): void;
}
/**
 * A message of the node; null where it is none. Types of newer nodes pass.
 * @param {string} text
 */
export declare function messageOf(text: string): any;
export type Dial = (address: string | null, giveUp?: AbortSignal) => Promise<Session>;
export type Link = {
    transport: Transport;
    /**
     * its node's greeting
     */
    created: any;
    /**
     * when it was made, on performance.now's clock
     */
    since: number;
    /**
     * its open contexts by the node's number of them
     */
    byNo: Map<number, MovingContext>;
    /**
     * its node takes no new contexts
     */
    refuses: boolean;
    /**
     * where it asks to go
     */
    address: string | null;
    /**
     * why the node ends it, if it said so
     */
    fatal: {
        code: string;
        message: string;
        retry_after_ms?: number;
    } | null;
    /**
     * code and reason of its end; null while it lives
     */
    end: [number, string] | null;
};
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
export declare class MovingTransport implements Transport {
    #private;
    onmessage: (/** @type {any} */ _message: any) => void;
    onaudio: (/** @type {Packet} */ _packet: Packet) => void;
    onclose: (/** @type {number} */ _code: number, /** @type {string} */ _reason: string) => void;
    /**
     * @param {Session} session greeted; its connection belongs to this one from now on
     * @param {Dial} dial
     * @param {(output: any) => boolean} resumes whether contexts with this `output` go on when their connection is lost
     */
    constructor(session: Session, dial: Dial, resumes?: (output: any) => boolean);
    /** @param {any} message */
    send(message: any): void;
    close(): void;
}
/**
 * A context in parts on several nodes, as one on one node. The session gets a word's sound when all of it has come,
 * unless the listener would have to wait: the beginning of a word whose node is lost is then dropped, and the word is said
 * from its start by the next node.
 */
declare class MovingContext {
    #private;
    /** What it asks for. */
    output: any;
    /** Where it is; null while it waits. @type {Link | null} */
    link: Link | null;
    /**
     * @param {any} open its first message
     * @param {number} no its number for the session
     * @param {Record<string, any>} defaults of the session
     * @param {{message: (message: any) => void, audio: (packet: Packet) => void, over: () => void}} tell
     */
    constructor(open: any, no: number, defaults: Record<string, any>, tell: {
        message: (message: any) => void;
        audio: (packet: Packet) => void;
        over: () => void;
    });
    get id(): any;
    /**
     * Speak on this connection what is left of it.
     * @param {Link} link
     */
    begin(link: Link): void;
    /** @param {any} message of the session */
    send(message: any): void;
    /** @param {any} message of the node */
    receive(message: any): void;
    /** @param {Packet} packet */
    hear(packet: Packet): void;
    /** Its connection is lost: it waits for another, or ends. */
    lose(): void;
    /**
     * End it, here.
     * @param {{code: string, message: string, retry_after_ms?: number}} error
     */
    fail({ code, message, retry_after_ms }: {
        code: string;
        message: string;
        retry_after_ms?: number;
    }): void;
    /** Nothing more comes, or is wanted. */
    close(): void;
}
export {};
