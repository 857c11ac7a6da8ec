FROM python:3.11-slim AS build
WORKDIR /src
COPY requirements/build.txt requirements/run.txt requirements/
RUN python -m venv /opt/rlvitals \
 && /opt/rlvitals/bin/pip install --no-cache-dir --require-hashes -r requirements/build.txt -r requirements/run.txt
COPY pyproject.toml README.md LICENSE ./
COPY alembic alembic
COPY ingest ingest
COPY server server
COPY frontend frontend
RUN /opt/rlvitals/bin/pip install --no-cache-dir --no-deps --no-build-isolation . \
 && /opt/rlvitals/bin/python -m frontend.static

FROM python:3.11-slim
RUN useradd --uid 10001 --create-home --home-dir /data --shell /usr/sbin/nologin rlvitals && chmod 0700 /data
COPY --from=build /opt/rlvitals /opt/rlvitals
ENV PATH=/opt/rlvitals/bin:$PATH PYTHONUNBUFFERED=1 RLVITALS_HOME=/data/home
USER rlvitals
VOLUME /data
EXPOSE 8420
HEALTHCHECK --interval=30s --timeout=5s --start-period=20s --retries=3 \
  CMD ["python", "-c", "import urllib.request; urllib.request.urlopen('http://127.0.0.1:8420/healthz', timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["rlvitals"]
CMD ["serve", "--host", "0.0.0.0", "--port", "8420", "--allow-host", "localhost"]
