//! Where a request comes from (security-policy §9.3).

use envoy_types::pb::envoy::{
    config::rbac::v3::{
        Principal,
        principal::{Authenticated, Identifier},
    },
    r#type::matcher::v3::{
        FilterStateMatcher, StringMatcher, filter_state_matcher, string_matcher::MatchPattern,
    },
};
use model::api::security::{Condition, Source};

use super::{
    matcher::{self, Unusable},
    rule::{Conjunction, Matcher as _, RuleContext},
    trust_domain,
};

const HEADERS: &str = "request.headers";
const CLAIMS: &str = "request.auth.claims";

/// Wraps an identifier.
pub(super) const fn of(identifier: Identifier) -> Principal {
    Principal {
        identifier: Some(identifier),
    }
}

/// Tells whether a condition's attribute belongs to the request's source.
pub(super) fn is_key(key: &str) -> bool {
    matches!(
        key,
        "source.ip"
            | "remote.ip"
            | "source.namespace"
            | "source.principal"
            | "source.serviceAccount"
            | "source.trustDomain"
            | "request.auth.principal"
            | "request.auth.audiences"
            | "request.auth.presenter"
    ) || key.starts_with(HEADERS)
        || key.starts_with(CLAIMS)
}

/// Compiles one `from` element with the rule's conditions.
pub(super) fn compile(
    source: &Source,
    conditions: &[&Condition],
    ctx: &RuleContext<'_>,
) -> Result<Principal, Unusable> {
    let mut fields = Fields {
        all: Conjunction::new(*ctx),
        ctx,
    };
    fields.principals(&source.principals, &source.not_principals)?;
    fields.request_principals(&source.request_principals, &source.not_request_principals)?;
    fields.service_accounts(&source.service_accounts, &source.not_service_accounts)?;
    fields.trust_domains(&source.trust_domains, &source.not_trust_domains)?;
    fields.namespaces(&source.namespaces, &source.not_namespaces)?;
    fields.remote_ips(&source.remote_ip_blocks, &source.not_remote_ip_blocks)?;
    fields.direct_ips(&source.ip_blocks, &source.not_ip_blocks)?;
    for condition in conditions {
        fields.condition(condition)?;
    }
    Ok(fields.all.finish())
}

struct Fields<'a> {
    all: Conjunction<'a, Principal>,
    ctx: &'a RuleContext<'a>,
}

impl Fields<'_> {
    fn condition(&mut self, condition: &Condition) -> Result<(), Unusable> {
        let (values, not_values) = (&condition.values[..], &condition.not_values[..]);
        match condition.key.as_str() {
            "source.ip" => self.direct_ips(values, not_values),
            "remote.ip" => self.remote_ips(values, not_values),
            "source.namespace" => self.namespaces(values, not_values),
            "source.principal" => self.principals(values, not_values),
            "source.serviceAccount" => self.service_accounts(values, not_values),
            "source.trustDomain" => self.trust_domains(values, not_values),
            "request.auth.principal" => self.request_principals(values, not_values),
            "request.auth.audiences" => self.claim(condition, &Ok(vec!["aud".to_owned()])),
            "request.auth.presenter" => self.claim(condition, &Ok(vec!["azp".to_owned()])),
            key if key.starts_with(CLAIMS) => {
                self.claim(condition, &matcher::bracketed(key, CLAIMS))
            }
            key => self.header(key, values, not_values),
        }
    }

    #[expect(deprecated, reason = "Istio matches token claims by this form")]
    fn claim(
        &mut self,
        condition: &Condition,
        path: &Result<Vec<String>, Unusable>,
    ) -> Result<(), Unusable> {
        let ctx = self.ctx;
        self.all
            .together(&condition.values, &condition.not_values, |values| {
                ctx.http_only("token claims")?;
                let path = path
                    .as_ref()
                    .map_err(|_| Unusable::Key(condition.key.clone()))?;
                Ok(of(Identifier::Metadata(matcher::claim(path, values))))
            })
    }

    fn header(
        &mut self,
        key: &str,
        values: &[String],
        not_values: &[String],
    ) -> Result<(), Unusable> {
        let ctx = self.ctx;
        self.all.field(values, not_values, |v| {
            ctx.http_only("headers")?;
            let name = key
                .strip_prefix(HEADERS)
                .and_then(|rest| rest.strip_prefix('['))
                .and_then(|rest| rest.strip_suffix(']'))
                .ok_or_else(|| Unusable::Key(key.to_owned()))?;
            Ok(of(Identifier::Header(matcher::header(name, v, false))))
        })
    }

    fn principals(&mut self, values: &[String], not_values: &[String]) -> Result<(), Unusable> {
        let ctx = self.ctx;
        let expand = |values: &[String]| trust_domain::principals(values, ctx.trust_domains);
        self.all.field(&expand(values), &expand(not_values), |v| {
            Ok(authenticated(ctx, matcher::spiffe(v)))
        })
    }

    fn trust_domains(&mut self, values: &[String], not_values: &[String]) -> Result<(), Unusable> {
        let ctx = self.ctx;
        let expand = |values: &[String]| trust_domain::domains(values, ctx.trust_domains);
        self.all.field(&expand(values), &expand(not_values), |v| {
            let prefix = |text: String| matcher::string(MatchPattern::Prefix(text));
            let name = match v.split_once('*') {
                Some(("", "")) => prefix("spiffe://".to_owned()),
                Some((before, after)) => matcher::regex(format!(
                    "spiffe://{}[^/]*{}/.*",
                    matcher::quote(before),
                    matcher::quote(after)
                )),
                None => prefix(format!("spiffe://{v}/")),
            };
            Ok(authenticated(ctx, name))
        })
    }

    fn namespaces(&mut self, values: &[String], not_values: &[String]) -> Result<(), Unusable> {
        let ctx = self.ctx;
        self.all.field(values, not_values, |v| {
            let pieces: Vec<_> = v.split('*').map(matcher::quote).collect();
            Ok(authenticated(
                ctx,
                matcher::regex(format!(".*/ns/{}/.*", pieces.join(".*"))),
            ))
        })
    }

    fn service_accounts(
        &mut self,
        values: &[String],
        not_values: &[String],
    ) -> Result<(), Unusable> {
        let ctx = self.ctx;
        self.all.field(values, not_values, |v| {
            let (namespace, account) = v.split_once('/').unwrap_or((ctx.namespace, v));
            Ok(authenticated(
                ctx,
                matcher::regex(format!(
                    "spiffe://.+/ns/{}/(.+/|)sa/{}(/.+)?",
                    matcher::quote(namespace),
                    matcher::quote(account)
                )),
            ))
        })
    }

    fn direct_ips(&mut self, values: &[String], not_values: &[String]) -> Result<(), Unusable> {
        self.all.field(values, not_values, |v| {
            Ok(of(Identifier::DirectRemoteIp(matcher::cidr(v)?)))
        })
    }

    fn remote_ips(&mut self, values: &[String], not_values: &[String]) -> Result<(), Unusable> {
        self.all.field(values, not_values, |v| {
            Ok(of(Identifier::RemoteIp(matcher::cidr(v)?)))
        })
    }

    fn request_principals(
        &mut self,
        values: &[String],
        not_values: &[String],
    ) -> Result<(), Unusable> {
        let ctx = self.ctx;
        self.all.together(values, not_values, |values| {
            ctx.http_only("token principals")?;
            let mut pairs: Vec<_> = values.iter().map(|v| token_principal(v)).collect();
            Ok(if pairs.len() == 1 {
                pairs.remove(0)
            } else {
                Principal::or(pairs)
            })
        })
    }
}

/// Matches the peer's identity.
fn authenticated(ctx: &RuleContext<'_>, name: StringMatcher) -> Principal {
    if ctx.filter_state {
        return of(Identifier::FilterState(FilterStateMatcher {
            key: "io.istio.peer_principal".to_owned(),
            matcher: Some(filter_state_matcher::Matcher::StringMatch(name)),
        }));
    }
    of(Identifier::Authenticated(Authenticated {
        principal_name: Some(name),
    }))
}

/// Matches issuer and subject of a token.
#[expect(deprecated, reason = "Istio matches token claims by this form")]
fn token_principal(value: &str) -> Principal {
    let exact = |text: &str| matcher::string(MatchPattern::Exact(text.to_owned()));
    let prefix = |text: &str| matcher::string(MatchPattern::Prefix(text.to_owned()));
    let suffix = |text: &str| matcher::string(MatchPattern::Suffix(text.to_owned()));
    let any = || matcher::regex(".+");
    let parts = value.rsplit_once('/');
    let (issuer, subject) = if value == "*" {
        (any(), any())
    } else if let Some(rest) = value.strip_prefix('*') {
        match rest.rsplit_once('/') {
            Some(("", subject)) => (any(), exact(subject)),
            Some((issuer, subject)) => (suffix(issuer), exact(subject)),
            None => (any(), suffix(rest)),
        }
    } else if let Some(rest) = value.strip_suffix('*') {
        match rest.rsplit_once('/') {
            Some((issuer, "")) => (exact(issuer), any()),
            Some((issuer, subject)) => (exact(issuer), prefix(subject)),
            None => (prefix(rest), any()),
        }
    } else {
        let (issuer, subject) = parts.unwrap_or((value, ""));
        (exact(issuer), exact(subject))
    };
    let claim = |name: &str, value: StringMatcher| {
        of(Identifier::Metadata(matcher::metadata(
            matcher::JWT_FILTER,
            [matcher::PAYLOAD, name],
            matcher::string_value(value),
        )))
    };
    Principal::and(vec![claim("iss", issuer), claim("sub", subject)])
}
