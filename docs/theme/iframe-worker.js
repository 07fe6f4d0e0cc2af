// Browsers start no worker for a page that was opened as a file. Search needs one: run its script in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.append(this.frame);
      this.inside = this.frame.contentWindow;
      this.loaded = new Promise((resolve) => this.frame.addEventListener("load", resolve, { once: true }));
      const loadInOrder = (...urls) => urls.reduce((before, next) => before.then(() => new Promise((resolve, reject) => {
        const script = this.inside.document.createElement("script");
        Object.assign(script, { src: next, onload: resolve, onerror: reject });
        this.inside.document.body.append(script);
      })), Promise.resolve());
      this.inside.document.open();
      this.inside.importScripts = loadInOrder;
      this.inside.postMessage = (data) => {
        const event = new MessageEvent("message", { data });
        this.dispatchEvent(event);
        this.onmessage?.(event);
      };
      this.inside.document.write(`<body><script src="${url}"></scr` + "ipt></body>");
      this.inside.document.close();
    }

    postMessage(data) {
      this.loaded.then(() => this.inside.dispatchEvent(new MessageEvent("message", { data })));
    }

    terminate() {
      this.frame.remove();
    }
  };
}
