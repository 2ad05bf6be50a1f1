# The dashboard for others to look at: docker build -t llmviewer . && docker run --rm -p 8050:8050 llmviewer
FROM python:3.11-slim
RUN useradd --create-home llmviewer
WORKDIR /srv
COPY . source
RUN pip install --no-cache-dir -c source/constraints.txt './source[web]' && rm -r source
USER llmviewer
EXPOSE 8050
# Threads answer others while one request works; a worker whose threads all hang is replaced after the time-out.
CMD ["gunicorn", "--bind", "0.0.0.0:8050", "--worker-class", "gthread", "--workers", "4", "--threads", "4", \
     "--timeout", "30", "--max-requests", "2000", "--max-requests-jitter", "200", "--limit-request-line", "8190", \
     "llmviewer.webapp.wsgi:server"]
