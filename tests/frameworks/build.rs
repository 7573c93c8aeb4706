//! Writes the client and the server trait of the gRPC service, as `tonic-prost-build` does from a file
//! `shop.proto`. Here the service is described in Rust, so that the tests need no `protoc`.

use tonic_build::manual::{Builder, Method, Service};

fn main() {
    let method = |name: &str, route: &str, input: &str, output: &str| {
        Method::builder()
            .name(name)
            .route_name(route)
            .input_type(format!("crate::orders::{input}"))
            .output_type(format!("crate::orders::{output}"))
            .codec_path("tonic_prost::ProstCodec")
            .build()
    };
    let orders = Service::builder()
        .name("Orders")
        .package("shop")
        .method(method("pay", "Pay", "PayRequest", "PayReply"))
        .method(method("ship", "Ship", "ShipRequest", "ShipReply"))
        .method(method("sweep", "Sweep", "SweepRequest", "SweepReply"))
        .build();
    Builder::new().compile(&[orders]);
    println!("cargo::rerun-if-changed=build.rs");
}
