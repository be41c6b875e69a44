//! One rule as one RBAC policy: permissions times principals (security-policy §8).

use envoy_types::pb::envoy::config::rbac::v3::{
    Permission, Policy, Principal, permission, principal as envoy_principal,
};
use model::api::security::{Condition, Operation, Rule, Source};

use super::{Layer, matcher::Unusable, permission as to, principal as from};

/// What a rule is compiled for.
#[derive(Clone, Copy, Debug)]
pub(super) struct RuleContext<'a> {
    /// Requests or connections.
    pub layer: Layer,
    /// The policy allows: what cannot be matched makes the rule void. Otherwise it is left out, so
    /// that the rule catches more.
    pub allow: bool,
    /// The policy's namespace.
    pub namespace: &'a str,
    /// The mesh's trust domain and its aliases.
    pub trust_domains: &'a [String],
    /// Peers are known from the filter state.
    pub filter_state: bool,
}

impl RuleContext<'_> {
    /// Refuses what only requests have, on connections.
    pub(super) fn http_only(&self, what: &'static str) -> Result<(), Unusable> {
        match self.layer {
            Layer::Http => Ok(()),
            Layer::Tcp => Err(Unusable::HttpOnly(what)),
        }
    }

    /// Decides about something that cannot be matched: a policy that allows loses the rule.
    fn tolerate(&self, error: Unusable) -> Result<(), Unusable> {
        if self.allow { Err(error) } else { Ok(()) }
    }
}

/// The algebra that permissions and principals share.
pub(super) trait Matcher: Clone {
    /// Matches everything.
    fn any() -> Self;
    /// Matches what all of them match.
    fn and(all: Vec<Self>) -> Self;
    /// Matches what one of them matches.
    fn or(alternatives: Vec<Self>) -> Self;
    /// Matches what it does not match.
    fn not(self) -> Self;
}

impl Matcher for Permission {
    fn any() -> Self {
        to::of(permission::Rule::Any(true))
    }

    fn and(rules: Vec<Self>) -> Self {
        to::of(permission::Rule::AndRules(permission::Set { rules }))
    }

    fn or(rules: Vec<Self>) -> Self {
        to::of(permission::Rule::OrRules(permission::Set { rules }))
    }

    fn not(self) -> Self {
        to::of(permission::Rule::NotRule(Box::new(self)))
    }
}

impl Matcher for Principal {
    fn any() -> Self {
        from::of(envoy_principal::Identifier::Any(true))
    }

    fn and(ids: Vec<Self>) -> Self {
        from::of(envoy_principal::Identifier::AndIds(envoy_principal::Set {
            ids,
        }))
    }

    fn or(ids: Vec<Self>) -> Self {
        from::of(envoy_principal::Identifier::OrIds(envoy_principal::Set {
            ids,
        }))
    }

    fn not(self) -> Self {
        from::of(envoy_principal::Identifier::NotId(Box::new(self)))
    }
}

/// Collects what must all match.
pub(super) struct Conjunction<'a, M> {
    ctx: RuleContext<'a>,
    terms: Vec<M>,
}

impl<'a, M: Matcher> Conjunction<'a, M> {
    pub(super) fn new(ctx: RuleContext<'a>) -> Self {
        Self {
            ctx,
            terms: Vec::new(),
        }
    }

    /// Adds one field: one of `values`, and none of `not_values`.
    pub(super) fn field(
        &mut self,
        values: &[String],
        not_values: &[String],
        translate: impl Fn(&str) -> Result<M, Unusable>,
    ) -> Result<(), Unusable> {
        let ctx = self.ctx;
        self.aggregate(values, not_values, |values| {
            let mut alternatives = Vec::with_capacity(values.len());
            for value in values {
                match translate(value) {
                    Ok(matcher) => alternatives.push(matcher),
                    Err(error) => ctx.tolerate(error)?,
                }
            }
            Ok((!alternatives.is_empty()).then(|| M::or(alternatives)))
        })
    }

    /// Adds one field whose values become one matcher together.
    pub(super) fn together(
        &mut self,
        values: &[String],
        not_values: &[String],
        translate: impl Fn(&[String]) -> Result<M, Unusable>,
    ) -> Result<(), Unusable> {
        let ctx = self.ctx;
        self.aggregate(values, not_values, |values| match translate(values) {
            Ok(matcher) => Ok(Some(matcher)),
            Err(error) => ctx.tolerate(error).map(|()| None),
        })
    }

    fn aggregate(
        &mut self,
        values: &[String],
        not_values: &[String],
        translate: impl Fn(&[String]) -> Result<Option<M>, Unusable>,
    ) -> Result<(), Unusable> {
        let mut terms = Vec::new();
        if !values.is_empty() {
            terms.extend(translate(values)?);
        }
        if !not_values.is_empty() {
            terms.extend(translate(not_values)?.map(M::not));
        }
        self.terms.extend(terms);
        Ok(())
    }

    /// Combines the terms; nothing at all matches everything.
    pub(super) fn finish(self) -> M {
        let terms = if self.terms.is_empty() {
            vec![M::any()]
        } else {
            self.terms
        };
        M::and(terms)
    }
}

/// A policy that matches nothing.
pub(super) fn never() -> Policy {
    Policy {
        permissions: vec![Permission::any().not()],
        principals: vec![Principal::any().not()],
        ..Policy::default()
    }
}

/// Compiles a rule.
///
/// # Errors
/// When the whole rule is void: an unknown attribute, or something that cannot be matched in a
/// policy that allows.
pub(super) fn compile(rule: &Rule, ctx: &RuleContext<'_>) -> Result<Policy, Unusable> {
    let (permission_keys, principal_keys): (Vec<&Condition>, Vec<&Condition>) =
        rule.when.iter().partition(|c| to::is_key(&c.key));
    for condition in &principal_keys {
        if !from::is_key(&condition.key) {
            return Err(Unusable::UnknownKey(condition.key.clone()));
        }
    }
    let empty = Source::default();
    let principals = if rule.from.is_empty() {
        vec![from::compile(&empty, &principal_keys, ctx)?]
    } else {
        rule.from
            .iter()
            .map(|f| from::compile(f.source.as_ref().unwrap_or(&empty), &principal_keys, ctx))
            .collect::<Result<_, _>>()?
    };
    let empty = Operation::default();
    let permissions = if rule.to.is_empty() {
        vec![to::compile(&empty, &permission_keys, ctx)?]
    } else {
        rule.to
            .iter()
            .map(|t| {
                to::compile(
                    t.operation.as_ref().unwrap_or(&empty),
                    &permission_keys,
                    ctx,
                )
            })
            .collect::<Result<_, _>>()?
    };
    Ok(Policy {
        permissions,
        principals,
        ..Policy::default()
    })
}
