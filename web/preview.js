/** Plays a sample of a voice. */

/** What a voice says of itself, by language. @type {Record<string, string>} */
const WORDS = {
  en: "Hello, this is how I sound. Shall we talk?",
  de: "Hallo, so klinge ich. Wollen wir reden?",
  es: "Hola, así sueno yo. ¿Hablamos?",
  fr: "Bonjour, voilà ma voix. On se parle ?",
  it: "Ciao, questa è la mia voce. Parliamo?",
  ja: "こんにちは、これが私の声です。",
  ko: "안녕하세요, 이것이 제 목소리입니다.",
  pt: "Olá, esta é a minha voz. Vamos conversar?",
  ru: "Здравствуйте, так звучит мой голос.",
  zh: "你好，这就是我的声音。我们聊聊吧？",
};

export class Preview {
  /** It sounds from now on, or does not any more. @type {(sounding: boolean) => void} */
  onchange = () => {};
  #api;
  #audio = new Audio();
  /** Aborts the running preview. */
  #attempt = new AbortController();

  /** @param {import("./api.js").Api} api */
  constructor(api) {
    this.#api = api;
    this.#audio.addEventListener("ended", () => this.stop());
    this.#audio.addEventListener("error", () => this.#audio.src && this.stop());
  }

  /**
   * Play a voice.
   * @param {import("./api.js").Voice} voice
   * @throws {import("./api.js").ApiError} the preview failed
   */
  async play({ name, languages }) {
    this.stop();
    const { signal } = (this.#attempt = new AbortController());
    this.onchange(true);
    const input = WORDS[(languages[0] ?? "en").split("-")[0]] ?? WORDS.en;
    try {
      const file = await this.#api.speech({ voice: name, input }, signal);
      if (signal.aborted) return;
      this.#audio.src = URL.createObjectURL(file);
      await this.#audio.play();
    } catch (error) {
      if (signal.aborted) return;
      this.stop();
      throw error;
    }
  }

  /** Idempotent. */
  stop() {
    this.#attempt.abort();
    this.#audio.pause();
    if (this.#audio.src) URL.revokeObjectURL(this.#audio.src);
    this.#audio.removeAttribute("src");
    this.onchange(false);
  }
}
