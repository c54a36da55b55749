# Image of a server with the shipped model. Needs BuildKit (docker build, buildah, podman).
#
#   docker build -t weir .
#   docker run --read-only -p 50051:50051 weir
#
# docs/deploy.md describes the settings, and how to take newer base images, which are pinned by digest.

ARG BUILD_IMAGE=rust:1.95.0-slim-bookworm@sha256:d7482085ff5b415f84dba5647ae71606650bdef00db7aeb69f4b3d170c3e4082
ARG BASE_IMAGE=debian:bookworm-20260824-slim@sha256:88200866dfff7ea7f5cbcb6ec7c8a701889efe6fe859fe64d6990e4b07ea4171

FROM ${BUILD_IMAGE} AS build
WORKDIR /weir
COPY . .
# The compiler's output is cached between builds, so the program must be copied out of the cache.
RUN --mount=type=cache,target=/usr/local/cargo/registry --mount=type=cache,target=/weir/target \
    cargo build --release --locked --bin weir && cp target/release/weir /usr/local/bin/weir

FROM ${BASE_IMAGE}
LABEL org.opencontainers.image.title="weir" \
      org.opencontainers.image.description="Inference server for character- and byte-level language models" \
      org.opencontainers.image.licenses="MIT OR Apache-2.0"
# A user without a name, which owns no file of the image.
USER 10001:10001
COPY --from=build /usr/local/bin/weir /usr/local/bin/weir
COPY LICENSE-MIT LICENSE-APACHE /usr/share/doc/weir/
COPY models/hourglass-english /models/hourglass-english
ENV WEIR_MODELS=/models WEIR_LISTEN=0.0.0.0:50051 WEIR_HTTP_LISTEN=0.0.0.0:8000 WEIR_ADMIN_LISTEN=0.0.0.0:9090
# gRPC; completions over HTTP; metrics and health, which only your monitoring should reach.
EXPOSE 50051 8000 9090
STOPSIGNAL SIGTERM
HEALTHCHECK --interval=10s --timeout=6s --start-period=60s \
    CMD ["weir", "health", "127.0.0.1:50051", "--service", "weir.v1.Generation"]
ENTRYPOINT ["weir"]
CMD ["serve"]
