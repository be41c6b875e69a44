//! Redirects and direct responses (routes §14).

use envoy_types::pb::envoy::config::{
    core::v3::{DataSource, data_source::Specifier},
    route::v3::{
        DirectResponseAction, RedirectAction,
        redirect_action::{PathRewriteSpecifier, RedirectResponseCode, SchemeRewriteSpecifier},
    },
};
use model::api;

use super::RouteContext;

/// Translates a redirect; `None` for a status that is no redirect, which leaves the route without
/// an action.
pub(super) fn redirect(
    redirect: &api::virtual_service::HttpRedirect,
    ctx: &RouteContext<'_>,
) -> Option<RedirectAction> {
    let code = match redirect.redirect_code {
        0 | 301 => RedirectResponseCode::MovedPermanently,
        302 => RedirectResponseCode::Found,
        303 => RedirectResponseCode::SeeOther,
        307 => RedirectResponseCode::TemporaryRedirect,
        308 => RedirectResponseCode::PermanentRedirect,
        _ => return None,
    };
    let path = if redirect.prefix_rewrite.is_empty() {
        PathRewriteSpecifier::PathRedirect(redirect.uri.clone())
    } else {
        PathRewriteSpecifier::PrefixRewrite(redirect.prefix_rewrite.clone())
    };
    let scheme = match redirect.scheme.as_str() {
        "" if ctx.tls_server => "https",
        "" => "http",
        scheme => scheme,
    };
    let port = match (redirect.port, redirect.derive_port) {
        (Some(port), _) => port,
        (None, Some(api::virtual_service::RedirectPortSelection::FromRequestPort)) => {
            u32::from(ctx.listener_port)
        }
        (None, Some(api::virtual_service::RedirectPortSelection::FromProtocolDefault) | None) => 0,
    };
    let is_default_port = (scheme == "http" && port == 80) || (scheme == "https" && port == 443);
    Some(RedirectAction {
        host_redirect: redirect.authority.clone(),
        port_redirect: if is_default_port { 0 } else { port },
        response_code: code.into(),
        scheme_rewrite_specifier: (!redirect.scheme.is_empty())
            .then(|| SchemeRewriteSpecifier::SchemeRedirect(redirect.scheme.clone())),
        path_rewrite_specifier: Some(path),
        ..RedirectAction::default()
    })
}

/// Translates a direct response.
pub(super) fn direct_response(
    response: &api::virtual_service::HttpDirectResponse,
) -> DirectResponseAction {
    let body = response.body.as_ref().and_then(|body| {
        if let Some(text) = &body.string {
            Some(Specifier::InlineString(text.clone()))
        } else {
            body.bytes
                .as_ref()
                .map(|bytes| Specifier::InlineBytes(bytes.0.clone()))
        }
    });
    DirectResponseAction {
        status: response.status,
        body: body.map(|specifier| DataSource {
            specifier: Some(specifier),
            ..DataSource::default()
        }),
        ..DirectResponseAction::default()
    }
}
