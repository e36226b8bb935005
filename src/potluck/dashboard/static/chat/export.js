// Conversations as files.

function fileName(title, ending) {
  const name = title.toLowerCase().replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "");
  return `${name.slice(0, 60) || "conversation"}.${ending}`;
}

function download(name, type, text) {
  const address = URL.createObjectURL(new Blob([text], { type }));
  const link = document.createElement("a");
  link.href = address;
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(address), 10_000);
}

/** Saves conversations as one JSON document. */
export function exportJson(conversations, title) {
  const document = { schema: "potluck.conversations/1", conversations };
  download(fileName(title, "json"), "application/json", JSON.stringify(document, null, 2));
}

/** A block of code, with a fence that is longer than any in the text. */
function fenced(text) {
  const longest = Math.max(2, ...(text.match(/`+/g) ?? []).map((each) => each.length));
  const fence = "`".repeat(longest + 1);
  return `${fence}\n${text}\n${fence}`;
}

/** Returns a conversation as Markdown. */
function markdownOf(conversation) {
  const parts = [`# ${conversation.title}`];
  const { system } = conversation.settings;
  if (system) parts.push("## System", system);
  for (const message of conversation.messages) {
    if (message.role === "user") parts.push("## You", message.content);
    else if (message.role === "tool") parts.push("## Result of a tool", fenced(message.content));
    else {
      parts.push(`## ${message.model}`);
      if (message.reasoning) parts.push(message.reasoning.replace(/^/gm, "> ").trimEnd());
      if (message.content) parts.push(message.content);
      for (const call of message.toolCalls) parts.push(fenced(`${call.name}(${call.arguments})`));
    }
  }
  return `${parts.join("\n\n")}\n`;
}

/** Saves a conversation as Markdown. */
export function exportMarkdown(conversation) {
  download(fileName(conversation.title, "md"), "text/markdown", markdownOf(conversation));
}
