# Perdure's command in a container: `perdure serve`, and all of the command line.
#
#   docker build -t perdure .
#   docker run --rm -v pools:/var/lib/perdure -p 127.0.0.1:6379:6379 perdure \
#     serve /var/lib/perdure/store.pool --create --capacity 10G --resp 0.0.0.0:6379 --password 'a long one'
#
# docs/packages.md says what survives what there.

FROM debian:12 AS build
WORKDIR /src
COPY tools/install-deps.sh tools/
RUN tools/install-deps.sh base packages
COPY . .
RUN cmake -S . -B build/image -G Ninja -DCMAKE_BUILD_TYPE=Release -DCMAKE_INSTALL_PREFIX=/usr \
      -DPERDURE_BUILD_LAB=OFF -DPERDURE_BUILD_TESTS=OFF -DPERDURE_BUILD_EXAMPLES=OFF \
    && cmake --build build/image --target perdure_packaged \
    && cd build/image && cpack -G DEB

FROM debian:12-slim
COPY --from=build /src/build/image/packages/perdure-tools_*.deb /tmp/
RUN useradd --system --home-dir /var/lib/perdure --create-home perdure \
    && apt-get update \
    && apt-get install -y --no-install-recommends /tmp/perdure-tools_*.deb \
    && rm -rf /tmp/perdure-tools_*.deb /var/lib/apt/lists/* /var/cache/apt/*.bin
USER perdure
WORKDIR /var/lib/perdure
VOLUME /var/lib/perdure
EXPOSE 6379
# SIGTERM, which `docker stop` sends, stops it in order; SIGKILL is safe, too.
ENTRYPOINT ["perdure"]
CMD ["--help"]
