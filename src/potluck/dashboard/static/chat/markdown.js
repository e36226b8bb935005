// Shows a text as Markdown. Raw HTML in it is shown as text; what marked makes of the rest goes
// through DOMPurify, which leaves only the elements and attributes named here.

import DOMPurify from "../vendor/dompurify.js";
import { Marked } from "../vendor/marked.js";
import { copyText, html, useEffect, useMemo, useRef, useState } from "../lib.js";
import { Icon } from "../icons.js";

const TAGS = [
  "a", "blockquote", "br", "code", "del", "em", "h3", "h4", "h5", "h6", "hr", "img", "li", "ol",
  "p", "pre", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
];
const ATTRIBUTES = ["align", "alt", "href", "src", "start", "title"];
const IMAGE = /^data:image\/(png|jpeg|gif|webp);/i;
const LINK = /^(https?|mailto):/i;
const ESCAPES = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };

function escaped(text) {
  return text.replace(/[&<>"]/g, (character) => ESCAPES[character]);
}

const marked = new Marked({
  gfm: true,
  breaks: true,
  renderer: {
    html: ({ text }) => escaped(text),
    checkbox: ({ checked }) => (checked ? "☑ " : "☐ "),
    // The page's own headings are above those of an answer.
    heading({ tokens, depth }) {
      const level = Math.min(depth + 2, 6);
      return `<h${level}>${this.parser.parseInline(tokens)}</h${level}>`;
    },
    // Images of other hosts are never loaded.
    image: ({ href, text }) => (IMAGE.test(href)
      ? `<img src="${escaped(href)}" alt="${escaped(text)}">`
      : escaped(text || href)),
  },
});

const purifier = DOMPurify();
purifier.addHook("afterSanitizeAttributes", (node) => {
  if (node.nodeName === "A") {
    if (!LINK.test(node.getAttribute("href") ?? "")) node.removeAttribute("href");
    node.setAttribute("target", "_blank");
    node.setAttribute("rel", "noopener noreferrer");
  } else if (node.nodeName === "IMG" && !IMAGE.test(node.getAttribute("src") ?? "")) {
    node.remove();
  }
});

/** Returns HTML that is safe to insert, from HTML that may be anything. */
function sanitized(content) {
  return purifier.sanitize(content, {
    ALLOWED_TAGS: TAGS, ALLOWED_ATTR: ATTRIBUTES, ALLOW_ARIA_ATTR: false, ALLOW_DATA_ATTR: false,
  });
}

function Block({ token }) {
  const content = useMemo(() => sanitized(marked.parser([token])), [token.raw]);
  return html`<div dangerouslySetInnerHTML=${{ __html: content }} />`;
}

function CodeBlock({ token }) {
  const [isCopied, setCopied] = useState(false);
  const timer = useRef(null);
  useEffect(() => () => clearTimeout(timer.current), []);
  async function copy() {
    await copyText(token.text);
    setCopied(true);
    timer.current = setTimeout(() => setCopied(false), 1500);
  }
  const language = (token.lang ?? "").split(/\s/)[0];
  return html`<figure class="code">
    <figcaption><span>${language || "text"}</span>
      <button type="button" class="button quiet" onClick=${copy}>
        <${Icon} name="copy" />${isCopied ? "Copied" : "Copy"}</button></figcaption>
    <pre tabindex="0" aria-label=${`Code, ${language || "text"}`}><code>${token.text}</code></pre>
  </figure>`;
}

/** A text as Markdown. A block that has not changed is left as it is while a text grows. */
export function Markdown({ text }) {
  const tokens = useMemo(
    () => marked.lexer(text).filter((token) => token.type !== "space" && token.type !== "def"),
    [text],
  );
  return html`<div class="markdown">
    ${tokens.map((token, index) => html`<${token.type === "code" ? CodeBlock : Block}
      key=${index} token=${token} />`)}
  </div>`;
}
