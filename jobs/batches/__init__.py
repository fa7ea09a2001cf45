"""Files of requests, in OpenAI's shape: checked, asked line by line, and put together in the order they came in."""
