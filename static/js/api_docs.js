// Swagger UI over the API's own document. Requests that it tries go out with the reader's session.
const place = document.getElementById("api");

function csrfToken() {
  const found = document.cookie.match(/(?:^|; )csrftoken=([^;]+)/);
  return found ? found[1] : "";
}

followTheme(() => document.documentElement.classList.toggle("dark-mode", isDark()));

SwaggerUIBundle({
  url: place.dataset.schema,
  domNode: place,
  deepLinking: true,
  validatorUrl: null,
  requestInterceptor(request) {
    if (new URL(request.url, location.href).origin === location.origin) {
      request.headers["X-CSRFToken"] = csrfToken();
    }
    return request;
  },
});
