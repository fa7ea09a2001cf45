// Redoc over the API's own document. Its search wants a worker made of a blob, which the security policy forbids.
const place = document.getElementById("api");
Redoc.init(place.dataset.schema, { disableSearch: true, hideDownloadButton: false }, place);
