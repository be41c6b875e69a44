//! JSON and YAML to and from Envoy's protobuf messages, by reflection, and the canonical encoding.
