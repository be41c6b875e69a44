//! Messages of `istio.v1.auth.IstioCertificateService` (`security/v1alpha1/ca.proto` of Istio's API).

/// Name of the service.
pub(crate) const SERVICE: &str = "istio.v1.auth.IstioCertificateService";
/// Path of its one method.
pub(crate) const METHOD: &str = "/istio.v1.auth.IstioCertificateService/CreateCertificate";
/// Key of the metadata that asks for the certificate of somebody else.
pub(crate) const IMPERSONATED: &str = "ImpersonatedIdentity";

/// A request for a certificate.
#[derive(Clone, PartialEq, prost::Message)]
pub(crate) struct IstioCertificateRequest {
    /// The signing request in PEM form.
    #[prost(string, tag = "1")]
    pub(crate) csr: String,
    /// How long it shall be valid, in seconds; zero for the server's default.
    #[prost(int64, tag = "3")]
    pub(crate) validity_duration: i64,
    /// Further wishes.
    #[prost(message, optional, tag = "4")]
    pub(crate) metadata: Option<prost_types::Struct>,
}

/// A certificate.
#[derive(Clone, PartialEq, Eq, prost::Message)]
pub(crate) struct IstioCertificateResponse {
    /// PEM texts: the certificate first, the roots last, what is between them between.
    #[prost(string, repeated, tag = "1")]
    pub(crate) cert_chain: Vec<String>,
}
