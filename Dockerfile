# istiod as a static binary in an image without anything else.
#   docker build --tag istiod:0.1.0 .
FROM docker.io/library/rust:1.95-alpine AS build
# The C compiler and library of what is written in C below: compression and cryptographic primitives.
RUN apk add --no-cache musl-dev
WORKDIR /src
COPY . .
# The musl target of this image links statically.
RUN cargo build --locked --release --bin istiod && cp target/release/istiod /istiod

FROM gcr.io/distroless/static-debian12:nonroot
COPY --from=build /istiod /usr/local/bin/istiod
# A plugged-in authority is looked for in ./etc/cacerts.
WORKDIR /
USER 65532:65532
EXPOSE 8080 15010 15012 15014
ENTRYPOINT ["/usr/local/bin/istiod"]
CMD ["discovery"]
