//! What looks wrong between objects, told as findings with their place in the files.

use std::{collections::BTreeMap, fs, sync::Arc};

use intake::{Finding, Severity};
use model::config::Origin;
use pushctx::PushContext;
use translate::Translator;

use crate::load::Loaded;

impl Loaded {
    /// Adds to the report what looks wrong when all objects are seen together.
    ///
    /// Reads the files once more, for the lines of the fields.
    pub fn advise(&mut self) {
        let state = Translator::default().layer(self.intake.state());
        let context = PushContext::build(state);
        let mut texts = Texts::default();
        for advice in context.advice() {
            // Objects that translators derive stand in no file.
            let Some(object) = self.intake.state().objects.get(&advice.object) else {
                continue;
            };
            self.report.findings.push(Finding {
                kind: advice.object.kind.name().to_owned(),
                namespace: advice.object.namespace.to_string(),
                name: advice.object.name.to_string(),
                origin: texts.place(&object.meta().origin, &advice.field),
                field: advice.field,
                reason: advice.reason,
                severity: Severity::Warning,
            });
        }
        let findings = &mut self.report.findings;
        findings.sort_by(|a, b| a.order().cmp(&b.order()));
    }
}

/// Files that were read for the lines of fields.
#[derive(Default)]
struct Texts(BTreeMap<Arc<str>, Option<String>>);

impl Texts {
    /// The place of a field; that of its object when the file is gone by now.
    fn place(&mut self, object: &Origin, field: &str) -> Origin {
        let source = &object.source;
        let text = self.0.entry(source.clone());
        let text = text.or_insert_with(|| fs::read_to_string(&**source).ok());
        let line = text
            .as_ref()
            .and_then(|text| intake::yaml_line_in(text, object.line, field));
        Origin {
            source: source.clone(),
            line: line.unwrap_or(object.line),
        }
    }
}
