"use strict";

const LONGEST_SHOWN = 20000;

for (const button of document.querySelectorAll(".copy")) {
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.parentElement.querySelector("pre").textContent.trim());
    button.textContent = "Copied";
    setTimeout(() => { button.textContent = "Copy"; }, 1500);
  });
}

for (const form of document.querySelectorAll(".try form")) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    call(form);
  });
}

async function call(form) {
  const button = form.querySelector("button");
  const outcome = form.querySelector(".outcome");
  const answer = form.querySelector(".answer");
  const headers = { "Content-Type": "application/json" };
  const key = document.getElementById("key").value.trim();
  if (key) headers.Authorization = `Bearer ${key}`;
  button.disabled = true;
  outcome.textContent = "calling…";
  const began = performance.now();
  try {
    const response = await fetch(form.dataset.path, { method: "POST", headers, body: form.querySelector("textarea").value });
    const text = await response.text();
    outcome.textContent = `${response.status} in ${Math.round(performance.now() - began)} ms`;
    answer.textContent = shorten(pretty(text));
  } catch (error) {
    outcome.textContent = "no answer";
    answer.textContent = String(error);
  } finally {
    answer.hidden = false;
    button.disabled = false;
  }
}

function pretty(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

function shorten(text) {
  return text.length <= LONGEST_SHOWN ? text : `${text.slice(0, LONGEST_SHOWN)}\n…`;
}
