"use strict";
// Shows the list of kernels, which is sorted by a click on a column's name and searched by words of a line.
(function () {
  const MOST = 500;
  const listing = JSON.parse(document.getElementById("listing").textContent);
  const at = Object.fromEntries(listing.columns.map((name, index) => [name, index]));
  const bytes = (value) => {
    for (const unit of ["B", "KB", "MB"]) {
      if (value < 1000) return unit === "B" ? `${value}\u00a0B` : `${value.toFixed(1)}\u00a0${unit}`;
      value /= 1000;
    }
    return `${value.toFixed(1)}\u00a0GB`;
  };
  const states = { open: "not reached", shared: "by another builder" };
  const columns = [
    { title: "kernel", value: (row) => `${row[at.group]}-${row[at.design]}`, text: true },
    { title: "target", value: (row) => row[at.target], text: true },
    { title: "state", value: (row) => states[row[at.state]] || row[at.state], text: true },
    { title: "compiled in", value: (row) => row[at.seconds], show: (value) => `${value.toFixed(2)}\u00a0s` },
    { title: "registers", value: (row) => row[at.registers], show: String },
    { title: "spills", value: (row) => row[at.spill_bytes], show: bytes },
    { title: "static shared", value: (row) => row[at.static_bytes], show: bytes },
    { title: "dynamic shared", value: (row) => row[at.dynamic_bytes], show: bytes },
    { title: "GPU code", value: (row) => row[at.code_bytes], show: bytes },
    { title: "object", value: (row) => row[at.object_bytes], show: bytes },
  ];
  const rows = listing.kernels.map((row) => {
    const values = columns.map((column) => column.value(row));
    return { row, values, words: values.slice(0, 3).join(" ").toLowerCase() };
  });
  const search = document.getElementById("search");
  const count = document.getElementById("count");
  const head = document.getElementById("head");
  const body = document.getElementById("kernels");
  let sorted = 0, direction = 1;

  const compare = (one, two) => {
    const [a, b] = [one.values[sorted], two.values[sorted]];
    // What is not known comes last, whichever way is up.
    if (a === null || b === null) return (a === null) - (b === null);
    if (columns[sorted].text) return direction * a.localeCompare(b, "en", { numeric: true });
    return direction * (a - b);
  };
  const cell = (text, right) => {
    const made = document.createElement("td");
    made.textContent = text;
    if (right) made.className = "n";
    return made;
  };
  const show = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const found = rows.filter((item) => words.every((word) => item.words.includes(word))).sort(compare);
    body.replaceChildren(...found.slice(0, MOST).map((item) => {
      const line = document.createElement("tr");
      const name = cell("", false);
      const code = document.createElement("code");
      const group = document.createElement("small");
      code.textContent = item.row[at.design];
      group.textContent = item.row[at.group];
      name.className = "k";
      name.append(code, group);
      const others = columns.slice(1).map((column, index) => {
        const value = item.values[index + 1];
        return cell(column.text ? value : value === null ? "" : column.show(value), !column.text);
      });
      line.append(name, ...others);
      return line;
    }));
    const more = found.length > MOST ? `; the first ${MOST} are shown` : "";
    count.textContent = `${found.length} of ${rows.length} kernels${more}`;
    for (const [index, title] of [...head.children].entries()) {
      const order = direction > 0 ? "ascending" : "descending";
      title.setAttribute("aria-sort", index === sorted ? order : "none");
    }
  };
  columns.forEach((column, index) => {
    const title = document.createElement("th");
    const button = document.createElement("button");
    button.type = "button";
    button.textContent = column.title;
    button.addEventListener("click", () => {
      direction = index === sorted ? -direction : column.text ? 1 : -1;
      sorted = index;
      show();
    });
    if (!column.text) title.className = "n";
    title.append(button);
    head.append(title);
  });
  search.addEventListener("input", show);
  document.getElementById("list").hidden = false;
  show();
})();
