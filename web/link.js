/** A link that carries a text and a voice, behind the `#` of its address: browsers send that to nobody. Pure. */

export const MOST_CHARS = 2_000; // of a link's text: mail and chats cut longer addresses

/**
 * @param {URL} page
 * @param {string} text
 * @param {string} voice
 * @returns {string | null} null where the text is too long for a link
 */
export function linkTo(page, text, voice) {
  if ([...text].length > MOST_CHARS) return null;
  return String(new URL(`#${new URLSearchParams({ text, voice })}`, page));
}

/**
 * What a link carries; null where the address is no such link.
 * @param {string} hash of an address
 * @returns {{text: string, voice: string} | null} at most MOST_CHARS characters; "" where it names no voice
 */
export function carriedBy(hash) {
  const carried = new URLSearchParams(hash.slice(1));
  const text = carried.get("text");
  if (text === null) return null;
  return { text: [...text].slice(0, MOST_CHARS).join(""), voice: carried.get("voice") ?? "" };
}
