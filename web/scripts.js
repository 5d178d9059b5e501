/** Scripts without spaces between words: the rule of agent_tts/text/words.py. */

/** One letter of them, for regular expressions with the flag u. */
export const UNSPACED =
  String.raw`(?![\u02b0-\u02ff\u0e33\u0eb3])(?=[\p{L}\p{Nl}])[\p{scx=Han}\p{scx=Hira}\p{scx=Kana}\p{scx=Bopo}\p{scx=Thai}` +
  String.raw`\p{scx=Laoo}\p{scx=Tibt}\p{scx=Mymr}\p{scx=Khmr}\p{scx=Tale}\p{scx=Talu}\p{scx=Lana}\p{scx=Bali}\p{scx=Yiii}\p{scx=Java}\p{scx=Tavt}]`;
