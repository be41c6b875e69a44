//! What of an object goes into a secret (gateways §18.3, §18.4).

use envoy_json::{
    any,
    contrib::{CryptoMbPrivateKeyMethodConfig, QatPrivateKeyMethodConfig},
};
use envoy_types::pb::{
    envoy::{
        config::core::v3::{DataSource, data_source::Specifier},
        extensions::transport_sockets::tls::v3::{
            CertificateValidationContext, PrivateKeyProvider, Secret, TlsCertificate,
            private_key_provider, secret::Type,
        },
    },
    google::protobuf::Duration,
};
use model::api::{
    kubernetes::{ConfigMap, Secret as Object},
    mesh::{KeyProviderSettings, PrivateKeyProvider as KeyProvider},
};
use zeroize::Zeroize as _;

/// Certificates that verify peers, and what revokes some of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Authorities<'a> {
    certificates: &'a [u8],
    revoked: Option<&'a [u8]>,
}

impl<'a> Authorities<'a> {
    pub(super) fn of_secret(object: &'a Object) -> Option<Self> {
        Self::find(|key| object.value(key))
    }

    pub(super) fn of_config_map(object: &'a ConfigMap) -> Option<Self> {
        // A text block of YAML ends with a line break.
        Self::find(|key| object.value(key).map(<[u8]>::trim_ascii))
    }

    fn find(value: impl Fn(&str) -> Option<&'a [u8]>) -> Option<Self> {
        [("cacert", "crl"), ("ca.crt", "ca.crl")]
            .into_iter()
            .find_map(|(certificates, revoked)| {
                Some(Self {
                    certificates: value(certificates).filter(|v| !v.is_empty())?,
                    revoked: value(revoked),
                })
            })
    }

    pub(super) fn message(self, name: &str) -> Secret {
        Secret {
            name: name.to_owned(),
            r#type: Some(Type::ValidationContext(CertificateValidationContext {
                trusted_ca: Some(inline(self.certificates)),
                crl: self.revoked.map(inline),
                ..CertificateValidationContext::default()
            })),
        }
    }
}

/// A certificate with its key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct KeyPair<'a> {
    chain: &'a [u8],
    key: &'a [u8],
    staple: Option<&'a [u8]>,
}

impl<'a> KeyPair<'a> {
    pub(super) fn of(object: &'a Object) -> Option<Self> {
        let pair = |chain: &str, key: &str, staple: Option<&str>| {
            Some(Self {
                chain: object.value(chain).filter(|v| !v.is_empty())?,
                key: object.value(key).filter(|v| !v.is_empty())?,
                staple: staple.and_then(|key| object.value(key)),
            })
        };
        pair("cert", "key", None).or_else(|| pair("tls.crt", "tls.key", Some("tls.ocsp-staple")))
    }

    pub(super) fn message(self, name: &str, provider: Option<&KeyProvider>) -> Secret {
        let provider = provider.and_then(|provider| self.provided(provider));
        let by_hardware = provider.is_some();
        Secret {
            name: name.to_owned(),
            r#type: Some(Type::TlsCertificate(TlsCertificate {
                certificate_chain: Some(inline(self.chain)),
                private_key: (!by_hardware).then(|| inline(self.key)),
                ocsp_staple: self.staple.filter(|_| !by_hardware).map(inline),
                private_key_provider: provider,
                ..TlsCertificate::default()
            })),
        }
    }

    /// The key in the hands of hardware; `None` for settings that name none.
    fn provided(self, provider: &KeyProvider) -> Option<PrivateKeyProvider> {
        let private_key = Some(inline(self.key));
        let (name, settings, config) = if let Some(settings) = &provider.cryptomb {
            let config = any(&CryptoMbPrivateKeyMethodConfig {
                private_key,
                poll_delay: poll_delay(settings),
            });
            ("cryptomb", settings, config)
        } else {
            let settings = provider.qat.as_ref()?;
            let config = any(&QatPrivateKeyMethodConfig {
                private_key,
                poll_delay: poll_delay(settings),
            });
            ("qat", settings, config)
        };
        Some(PrivateKeyProvider {
            provider_name: name.to_owned(),
            fallback: settings.fallback.unwrap_or_default(),
            config_type: Some(private_key_provider::ConfigType::TypedConfig(config)),
        })
    }
}

/// The fraction of a second alone, as Istio sends it.
fn poll_delay(settings: &KeyProviderSettings) -> Option<Duration> {
    settings.poll_delay.map(|delay| Duration {
        seconds: 0,
        nanos: delay.subsec_nanos(),
    })
}

fn inline(bytes: &[u8]) -> DataSource {
    DataSource {
        specifier: Some(Specifier::InlineBytes(bytes.to_vec())),
        ..DataSource::default()
    }
}

/// Overwrites the key in a message that is no longer needed.
pub(super) fn wipe(secret: &mut Secret) {
    let Some(Type::TlsCertificate(certificate)) = &mut secret.r#type else {
        return;
    };
    if let Some(DataSource {
        specifier: Some(Specifier::InlineBytes(key)),
        ..
    }) = &mut certificate.private_key
    {
        key.zeroize();
    }
    if let Some(PrivateKeyProvider {
        config_type: Some(private_key_provider::ConfigType::TypedConfig(config)),
        ..
    }) = &mut certificate.private_key_provider
    {
        config.value.zeroize();
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn object(data: &[(&str, &str)]) -> Object {
        let text: serde_json::Map<String, Value> = data
            .iter()
            .map(|(key, value)| ((*key).to_owned(), json!(value)))
            .collect();
        serde_json::from_value(json!({"stringData": text})).unwrap()
    }

    /// Chain, key and staple.
    #[track_caller]
    fn check_pair(data: &[(&str, &str)], expected: Option<(&str, &str, Option<&str>)>) {
        let object = object(data);
        let found = KeyPair::of(&object).map(|pair| (pair.chain, pair.key, pair.staple));
        let expected = expected.map(|(chain, key, staple)| {
            (chain.as_bytes(), key.as_bytes(), staple.map(str::as_bytes))
        });
        assert!(found == expected, "{data:?}");
    }

    #[test]
    fn the_first_complete_pair_counts() {
        let tls = [("tls.crt", "c"), ("tls.key", "k"), ("tls.ocsp-staple", "s")];
        check_pair(&tls, Some(("c", "k", Some("s"))));
        let generic = [("cert", "C"), ("key", "K")];
        check_pair(&[&tls[..], &generic].concat(), Some(("C", "K", None)));
        let incomplete = [("cert", "C"), ("key", "")];
        check_pair(
            &[&tls[..], &incomplete].concat(),
            Some(("c", "k", Some("s"))),
        );
        check_pair(&incomplete, None);
        check_pair(&[("ca.crt", "a")], None);
    }

    #[test]
    fn the_first_authority_counts_with_its_own_revocations() {
        let both = object(&[("cacert", "a"), ("ca.crt", "b"), ("ca.crl", "r")]);
        let found = Authorities::of_secret(&both).unwrap();
        assert_eq!((found.certificates, found.revoked), (&b"a"[..], None));
        let second = object(&[("cacert", ""), ("ca.crt", "b"), ("ca.crl", "r")]);
        let found = Authorities::of_secret(&second).unwrap();
        assert_eq!(
            (found.certificates, found.revoked),
            (&b"b"[..], Some(&b"r"[..]))
        );
        assert_eq!(Authorities::of_secret(&object(&[("tls.crt", "c")])), None);
    }

    #[test]
    fn hardware_gets_the_key_instead_of_envoy() {
        let object = object(&[("tls.crt", "c"), ("tls.key", "k"), ("tls.ocsp-staple", "s")]);
        let settings = json!({"qat": {"pollDelay": "1.5s", "fallback": true}});
        let settings: KeyProvider = serde_json::from_value(settings).unwrap();
        let pair = KeyPair::of(&object).unwrap();
        let mut message = pair.message("n", Some(&settings));
        let Some(Type::TlsCertificate(certificate)) = &message.r#type else {
            panic!("a certificate");
        };
        assert_eq!(certificate.private_key, None);
        assert_eq!(certificate.ocsp_staple, None);
        let provider = certificate.private_key_provider.as_ref().unwrap();
        assert_eq!((&*provider.provider_name, provider.fallback), ("qat", true));
        let Some(private_key_provider::ConfigType::TypedConfig(config)) = &provider.config_type
        else {
            panic!("a configuration");
        };
        let config: QatPrivateKeyMethodConfig = prost::Message::decode(&config.value[..]).unwrap();
        assert_eq!(config.poll_delay.unwrap().nanos, 500_000_000);
        assert_eq!(config.poll_delay.unwrap().seconds, 0);
        wipe(&mut message);
        assert!(!format!("{message:?}").contains("[107]"));
    }
}
