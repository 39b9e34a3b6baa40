# One image for the server, the workers and the command line. Builds with docker, podman and buildah.
#
#     docker build -t everwork .
#     docker run -e EVERWORK_API_KEY=... -e EVERWORK_INSECURE=on -p 127.0.0.1:27500:27500 -p 127.0.0.1:27555:27555 \
#         -v jobs:/var/lib/everwork everwork
#
# EVERWORK_INSECURE accepts unencrypted API keys: use it only if the ports are published on 127.0.0.1. Otherwise use TLS.
#
# BASE is any Debian or Ubuntu image with Python 3.11 or newer and its venv module.
ARG BASE=docker.io/library/python:3.13-slim-trixie

FROM ${BASE} AS build
WORKDIR /src
COPY pyproject.toml README.md LICENSE ./
COPY src ./src
# For a private package index, pass its configuration and CA certificate: --secret id=pip,src=pip.conf --secret id=ca,src=ca.pem.
# They are mounted for this step only and do not end up in the image.
RUN --mount=type=secret,id=pip,target=/etc/pip.conf \
    --mount=type=secret,id=ca,target=/run/secrets/ca.pem \
    python3 -m venv /opt/everwork \
    && /opt/everwork/bin/pip install --no-cache-dir --disable-pip-version-check .

FROM ${BASE}
# An init process: forwards signals and reaps orphaned processes.
RUN apt-get update \
    && apt-get install --yes --no-install-recommends tini \
    && rm -rf /var/lib/apt/lists/* /var/cache/apt/* /var/log/apt /var/log/dpkg.log \
    && groupadd --gid 10001 everwork \
    && useradd --uid 10001 --gid 10001 --home-dir /var/lib/everwork --create-home --shell /usr/sbin/nologin everwork
COPY --from=build /opt/everwork /opt/everwork
# Listens on all addresses of the container; which ports the host publishes is decided when the container is run.
ENV PATH="/opt/everwork/bin:$PATH" \
    PYTHONUNBUFFERED=1 \
    EVERWORK_HOST=0.0.0.0 \
    EVERWORK_ENGINE=sqlite:////var/lib/everwork/jobs.db
WORKDIR /var/lib/everwork
# Numeric, so that Kubernetes can verify runAsNonRoot.
USER 10001:10001
EXPOSE 27500 27555
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=30s --timeout=6s --start-period=30s --retries=3 CMD ["everwork", "probe"]
ENTRYPOINT ["tini", "--", "everwork"]
CMD ["serve"]
