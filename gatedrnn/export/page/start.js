// For browsers and places in which the page's modules cannot start: say why.

(() => {
  const say = (text) => {
    const problem = document.getElementById("problem");
    problem.textContent = text;
    problem.hidden = false;
    document.getElementById("loading").hidden = true;
  };
  if (location.protocol === "file:") {
    say("Open this folder through a server: run “python -m http.server” in it, then open http://localhost:8000.");
  } else if (typeof WebAssembly !== "object" || !("noModule" in HTMLScriptElement.prototype)) {
    say("This browser is too old: the page needs WebAssembly and JavaScript modules.");
  }
})();
