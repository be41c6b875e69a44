//! `/status`: the mesh at a glance, for people. Rendered here, kept live by server-sent events; works
//! without a script, and with a keyboard alone.

use std::{convert::Infallible, fmt::Write as _, time::Duration};

use axum::{
    Extension,
    extract::{Query, State},
    response::{
        Html, Sse,
        sse::{Event, KeepAlive},
    },
};
use futures::Stream;
use serde::Deserialize;

use super::{
    Distribution, Key,
    answer::{
        ClassAnswer, ConfigAnswer, MeshAnswer, ProxiesAnswer, PushAnswer, Standing,
        ThrottledAnswer, Unreachable,
    },
    api::{self, BASE, Refusal},
    ask::Wanted,
};
use crate::discovery::Gate;

/// Time between two looks of a page that is open.
const LOOK: Duration = Duration::from_secs(2);

/// Proxies that a search lists.
const LISTED: usize = 200;

/// Classes and publications that the page lists.
const SHOWN: usize = 20;

const STYLE: &str = "body{font:16px/1.5 system-ui,sans-serif;margin:2rem auto;max-width:70rem;padding:0 1rem}\
table{border-collapse:collapse;width:100%}th,td{text-align:left;padding:.25rem .75rem;border-bottom:1px solid #bbb;\
vertical-align:top}h2{margin-top:2rem}.bad{color:#a00000;font-weight:600}input{font:inherit;width:30rem;max-width:100%}\
@media(prefers-color-scheme:dark){body{background:#181818;color:#eee}.bad{color:#ff8080}a{color:#9cf}}";

const SCRIPT: &str = "new EventSource('/status/live').onmessage=e=>{document.getElementById('mesh').innerHTML=e.data}";

#[derive(Clone, Default, Debug, Deserialize)]
pub(super) struct Search {
    /// `KIND/NAME.NAMESPACE`, or a part of a proxy's id.
    #[serde(default)]
    q: String,
}

/// The page.
pub(super) async fn page(
    State(distribution): State<Distribution>,
    Extension(throttle): Extension<Gate>,
    Query(search): Query<Search>,
) -> Result<Html<String>, Refusal> {
    let found = match search.q.trim() {
        "" => String::new(),
        text => distribution.find(text).await,
    };
    let mesh = fragment(&distribution.whole_mesh(&throttle).await?);
    Ok(Html(format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>Mesh status</title>\
         <meta name=\"viewport\" content=\"width=device-width\"><style>{STYLE}</style></head><body>\
         <h1>Mesh status</h1><form role=\"search\"><label for=\"q\">A configuration \
         (KIND/NAME.NAMESPACE) or a part of a proxy's id</label><br><input id=\"q\" name=\"q\" \
         value=\"{}\" autofocus> <button>Search</button></form>{found}<main id=\"mesh\" \
         aria-live=\"polite\">{mesh}</main><script>{SCRIPT}</script></body></html>",
        escape(&search.q)
    )))
}

/// The part of the page that changes, whenever it does.
pub(super) async fn live(
    State(distribution): State<Distribution>,
    Extension(throttle): Extension<Gate>,
) -> Sse<impl Stream<Item = Result<Event, Infallible>>> {
    let first = (distribution, throttle, String::new());
    let events = futures::stream::unfold(first, async |(distribution, throttle, shown)| {
        loop {
            tokio::time::sleep(LOOK).await;
            // The page stays as it is when the process stops.
            let now = fragment(&distribution.whole_mesh(&throttle).await.ok()?);
            if now != shown {
                let event = Event::default().data(now.clone());
                return Some((Ok(event), (distribution, throttle, now)));
            }
        }
    });
    Sse::new(events).keep_alive(KeepAlive::default())
}

impl Distribution {
    /// Looks for a configuration or for proxies.
    async fn find(&self, text: &str) -> String {
        let Ok(key) = text.parse::<Key>() else {
            let mut answer = self.proxies(text);
            let path = format!("{BASE}/proxies?proxy={}", api::escape(text));
            answer.merge(self.peers().ask(&self.0.replica, &path).await);
            return proxies(&answer);
        };
        match self.config(&key, &Wanted::default()) {
            Err(_) => format!("<h2>{}</h2><p>Nobody knows it.</p>", escape(text)),
            Ok(mut answer) => {
                let hash = answer.hash.iter().map(|hash| format!("&hash={hash}"));
                let hash: String = hash.collect();
                let path = format!("{}?proxies=all{hash}", api::path_of(&key));
                answer.merge(self.peers().ask(&self.0.replica, &path).await);
                config(&answer)
            }
        }
    }
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            c => escaped.push(c),
        }
    }
    escaped
}

/// A table under a heading; nothing without rows. Cells are escaped.
fn table(heading: &str, columns: &[&str], rows: &[Vec<String>]) -> String {
    if rows.is_empty() {
        return String::new();
    }
    let mut html = format!("<h2>{}</h2><table><thead><tr>", escape(heading));
    for column in columns {
        write!(html, "<th scope=\"col\">{}</th>", escape(column)).ok();
    }
    html.push_str("</tr></thead><tbody>");
    for row in rows {
        html.push_str("<tr>");
        for cell in row {
            write!(html, "<td>{}</td>", escape(cell)).ok();
        }
        html.push_str("</tr>");
    }
    html.push_str("</tbody></table>");
    html
}

fn fragment(mesh: &MeshAnswer) -> String {
    let mut html = format!(
        "<p>{} proxies are connected, {} of them have everything. {} configurations.</p>",
        mesh.connected, mesh.current, mesh.configs
    );
    html.push_str(&lost(&mesh.unreachable));
    let seconds = |seconds: f64| format!("{seconds:.2} s");
    let pending = mesh.pending.iter().map(|pending| {
        let name = &pending.config;
        vec![
            format!("{}/{}.{}", name.kind, name.name, name.namespace),
            pending.pending.to_string(),
            // Whole seconds, so that the page changes when something does.
            format!("{:.0} s", pending.seconds),
        ]
    });
    let pending: Vec<_> = pending.collect();
    html.push_str(&table(
        "Pending",
        &["Configuration", "Proxies", "Since"],
        &pending,
    ));
    let refused = mesh.refused.iter().map(|refused| {
        vec![
            refused.resource.clone(),
            refused.type_url.clone(),
            refused.proxies.to_string(),
            refused.error.clone(),
        ]
    });
    let refused: Vec<_> = refused.collect();
    html.push_str(&table(
        "Refused",
        &["Resource", "Type", "Proxies", "Reason"],
        &refused,
    ));
    let aside = mesh.set_aside.iter().map(|aside| {
        vec![
            aside.object.clone(),
            aside.classes.to_string(),
            aside.error.clone(),
        ]
    });
    let aside: Vec<_> = aside.collect();
    html.push_str(&table(
        "Set aside",
        &["Object", "Classes", "Reason"],
        &aside,
    ));
    let kinds = mesh.kinds.iter().map(|kind| {
        vec![
            kind.kind.clone(),
            kind.changes.to_string(),
            format!("{:.2} %", kind.success * 100.0),
            seconds(kind.mean_seconds),
            seconds(kind.max_seconds),
        ]
    });
    let kinds: Vec<_> = kinds.collect();
    let columns = ["Kind", "Changes", "Accepted", "Mean time", "Longest time"];
    html.push_str(&table("Convergence", &columns, &kinds));
    html.push_str(&throttled(&mesh.throttled));
    html.push_str(&pushes(&mesh.pushes));
    html.push_str(&classes(&mesh.classes));
    let replicas = mesh.replicas.iter().map(|replica| {
        vec![
            replica.name.clone(),
            replica.connected.to_string(),
            replica.root.clone(),
        ]
    });
    let replicas: Vec<_> = replicas.collect();
    html.push_str(&table("Replicas", &["Name", "Proxies", "Root"], &replicas));
    html
}

fn throttled(throttled: &[ThrottledAnswer]) -> String {
    let rows = throttled.iter().map(|throttled| {
        vec![
            throttled.namespace.clone(),
            throttled.replica.clone(),
            age(throttled.seconds),
            throttled.held.to_string(),
            format!("{:.1} s", throttled.delay_seconds),
            throttled.noisiest.clone().unwrap_or_default(),
        ]
    });
    let rows: Vec<_> = rows.collect();
    let columns = [
        "Namespace",
        "Replica",
        "For",
        "Held changes",
        "Delay",
        "Noisiest object",
    ];
    table("Throttled namespaces", &columns, &rows)
}

fn pushes(pushes: &[PushAnswer]) -> String {
    let rows = pushes.iter().take(SHOWN).map(|push| {
        let mut cause = push.changed.join(", ");
        let unnamed = push.changes.saturating_sub(push.changed.len());
        if unnamed > 0 {
            write!(cause, " and {unnamed} more").ok();
        }
        vec![
            age(push.seconds_ago),
            push.replica.clone(),
            push.reasons.join(", "),
            cause,
            push.events.to_string(),
            format!("{:.1} ms", push.build_seconds * 1000.0),
            push.responses.to_string(),
            push.bytes.to_string(),
        ]
    });
    let rows: Vec<_> = rows.collect();
    let columns = [
        "Ago",
        "Replica",
        "Reason",
        "Changed",
        "Events",
        "Snapshot",
        "Responses",
        "Bytes",
    ];
    table("Last pushes", &columns, &rows)
}

fn classes(classes: &[ClassAnswer]) -> String {
    let rows = classes.iter().take(SHOWN).map(|class| {
        vec![
            class.class.clone(),
            class.proxies.to_string(),
            class.current.to_string(),
        ]
    });
    let rows: Vec<_> = rows.collect();
    let columns = ["Class", "Proxies", "Have everything"];
    let mut html = table("Connected proxies", &columns, &rows);
    let unlisted = classes.len().saturating_sub(SHOWN);
    if unlisted > 0 {
        write!(html, "<p>And {unlisted} smaller classes.</p>").ok();
    }
    html
}

/// A time in whole minutes, so that the page changes when something does.
fn age(seconds: f64) -> String {
    if seconds < 60.0 {
        "less than 1 min".to_owned()
    } else {
        format!("{:.0} min", (seconds / 60.0).floor())
    }
}

fn lost(unreachable: &[Unreachable]) -> String {
    let lost = unreachable.iter().map(|lost| {
        format!(
            "<p class=\"bad\">Replica {} cannot be asked: {}. Its proxies are missing.</p>",
            escape(&lost.replica),
            escape(&lost.error)
        )
    });
    lost.collect()
}

fn config(answer: &ConfigAnswer) -> String {
    let counts = answer.counts;
    let mut html = format!(
        "<p>{} of {} proxies have {}: {} pending, {} refused, {} undecided, {} disconnected.</p>",
        counts.has,
        counts.required,
        escape(&format!(
            "{}/{}.{}",
            answer.config.kind, answer.config.name, answer.config.namespace
        )),
        counts.pending,
        counts.refused,
        counts.undecided,
        counts.disconnected
    );
    html.push_str(&lost(&answer.unreachable));
    let rows = answer.proxies.iter().filter(|p| p.state != Standing::Has);
    let rows: Vec<_> = rows
        .take(LISTED)
        .map(|proxy| {
            vec![
                proxy.proxy.clone(),
                format!("{:?}", proxy.state).to_lowercase(),
                proxy
                    .seconds
                    .map(|s| format!("{s:.1} s"))
                    .unwrap_or_default(),
                proxy.error.clone().unwrap_or_default(),
            ]
        })
        .collect();
    html.push_str(&table(
        "Proxies",
        &["Proxy", "State", "For", "Reason"],
        &rows,
    ));
    html
}

fn proxies(answer: &ProxiesAnswer) -> String {
    let mut rows = Vec::new();
    for proxy in answer.proxies.iter().take(LISTED) {
        for standing in &proxy.types {
            rows.push(vec![
                proxy.proxy.clone(),
                standing.type_url.clone(),
                standing.resources.to_string(),
                standing.lacking.to_string(),
                standing.configs.join(", "),
                standing.root.clone().unwrap_or_default(),
            ]);
        }
    }
    if rows.is_empty() {
        return "<p>No connected proxy has that in its id.</p>".to_owned();
    }
    let columns = [
        "Proxy",
        "Type",
        "Resources",
        "Lacks",
        "Configurations",
        "Root",
    ];
    table("Proxies", &columns, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_proxies_say_cannot_become_markup() {
        let rows = [vec!["<script>alert('\"&')</script>".to_owned()]];
        let html = table("h", &["c"], &rows);
        let inert = "&lt;script&gt;alert(&#39;&quot;&amp;&#39;)&lt;/script&gt;";
        assert!(html.contains(inert), "{html}");
        assert!(!html.contains("<script"), "{html}");
    }

    #[test]
    fn a_push_says_why_and_what_it_cost() {
        let push = PushAnswer {
            replica: "one".into(),
            seconds_ago: 125.0,
            reasons: vec!["config".into()],
            changes: 7,
            changed: vec!["VirtualService/shop/a".into()],
            events: 9,
            build_seconds: 0.0012,
            responses: 4,
            bytes: 512,
        };
        let html = pushes(&[push]);
        for cell in [
            "2 min",
            "config",
            "VirtualService/shop/a and 6 more",
            "9",
            "1.2 ms",
            "4",
            "512",
        ] {
            assert!(html.contains(&format!("<td>{cell}</td>")), "{cell}: {html}");
        }
    }

    #[test]
    fn no_rows_no_table() {
        assert_eq!(table("h", &["c"], &[]), "");
    }
}
