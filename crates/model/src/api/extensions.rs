//! `extensions.istio.io` TrafficExtension and WasmPlugin (config-model.md §3.10).

use serde_json::{Map, Value};

use super::codec::{message, proto_enum};
use super::common::{PolicyTargetReference, WorkloadSelector};

message! {
    /// A Wasm or Lua extension; exactly one of `wasm` and `lua` is set.
    pub struct TrafficExtension {
        /// Workloads it is for.
        selector: Option<WorkloadSelector>,
        /// Resources it attaches to.
        target_refs: Vec<PolicyTargetReference>,
        /// Place in the filter chain.
        phase: PluginPhase,
        /// Larger runs earlier within a phase; unset means last.
        priority: Option<i32>,
        /// Traffic it applies to; empty means all.
        r#match: Vec<TrafficSelector>,
        /// A Wasm module.
        wasm: Option<WasmConfig>,
        /// A Lua script.
        lua: Option<LuaConfig>,
    }

    /// A Lua script.
    pub struct LuaConfig {
        /// Its text.
        inline_code: String,
    }

    /// A Wasm module.
    pub struct WasmConfig {
        /// Where it is: `oci://`, `http(s)://` or `file://`.
        url: String,
        /// Digest of the module or image.
        sha256: String,
        /// HTTP or network filter.
        r#type: PluginType,
        /// When it is pulled.
        image_pull_policy: PullPolicy,
        /// Secret with credentials of the registry.
        image_pull_secret: String,
        /// Not used.
        verification_key: String,
        /// Root id in the module.
        plugin_name: String,
        /// Configuration of the plugin.
        plugin_config: Option<Map<String, Value>>,
        /// What happens when it cannot run.
        fail_strategy: FailStrategy,
        /// Virtual machine.
        vm_config: Option<VmConfig>,
    }

    /// A Wasm module, in the older kind.
    pub struct WasmPlugin {
        /// Workloads it is for.
        selector: Option<WorkloadSelector>,
        /// Resource it attaches to, deprecated form.
        target_ref: Option<PolicyTargetReference>,
        /// Resources it attaches to.
        target_refs: Vec<PolicyTargetReference>,
        /// Where it is: `oci://`, `http(s)://` or `file://`.
        url: String,
        /// Digest of the module or image.
        sha256: String,
        /// When it is pulled.
        image_pull_policy: PullPolicy,
        /// Secret with credentials of the registry.
        image_pull_secret: String,
        /// Not used.
        verification_key: String,
        /// Configuration of the plugin.
        plugin_config: Option<Map<String, Value>>,
        /// Root id in the module.
        plugin_name: String,
        /// Place in the filter chain.
        phase: WasmPluginPhase,
        /// Larger runs earlier within a phase; unset means last.
        priority: Option<i32>,
        /// What happens when it cannot run.
        fail_strategy: FailStrategy,
        /// Virtual machine.
        vm_config: Option<VmConfig>,
        /// Traffic it applies to; empty means all.
        r#match: Vec<TrafficSelector>,
        /// HTTP or network filter.
        r#type: PluginType,
    }

    /// Traffic that an extension applies to.
    pub struct TrafficSelector {
        /// Side of the traffic.
        mode: SelectorMode,
        /// Ports, one of which must match; empty means all.
        ports: Vec<PortNumber>,
    }

    /// A port.
    pub struct PortNumber {
        /// Its number.
        number: u32,
    }

    /// The virtual machine of a Wasm module.
    pub struct VmConfig {
        /// Its environment.
        env: Vec<EnvVar>,
    }

    /// One variable.
    pub struct EnvVar {
        /// Its name.
        name: String,
        /// Where its value comes from.
        value_from: EnvValueSource,
        /// Its value, when given inline.
        value: String,
    }
}

impl WasmPlugin {
    /// Returns the module's part, as a traffic extension holds it.
    pub fn wasm_config(&self) -> WasmConfig {
        WasmConfig {
            url: self.url.clone(),
            sha256: self.sha256.clone(),
            r#type: self.r#type,
            image_pull_policy: self.image_pull_policy,
            image_pull_secret: self.image_pull_secret.clone(),
            verification_key: self.verification_key.clone(),
            plugin_name: self.plugin_name.clone(),
            plugin_config: self.plugin_config.clone(),
            fail_strategy: self.fail_strategy,
            vm_config: self.vm_config.clone(),
        }
    }
}

proto_enum! {
    /// Place of a traffic extension in the filter chain.
    pub enum PluginPhase {
        /// At the end, before the router.
        Unspecified = 0 "UNSPECIFIED",
        /// Before authentication.
        Authn = 1 "AUTHN",
        /// Before authorization.
        Authz = 2 "AUTHZ",
        /// Before statistics.
        Stats = 3 "STATS",
    }

    /// Place of a Wasm plugin in the filter chain.
    pub enum WasmPluginPhase {
        /// At the end, before the router.
        UnspecifiedPhase = 0 "UNSPECIFIED_PHASE",
        /// Before authentication.
        Authn = 1 "AUTHN",
        /// Before authorization.
        Authz = 2 "AUTHZ",
        /// Before statistics.
        Stats = 3 "STATS",
    }

    /// Kind of filter that a Wasm module is.
    pub enum PluginType {
        /// HTTP.
        UnspecifiedPluginType = 0 "UNSPECIFIED_PLUGIN_TYPE",
        /// HTTP.
        Http = 1 "HTTP",
        /// Network.
        Network = 2 "NETWORK",
    }

    /// When an image is pulled.
    pub enum PullPolicy {
        /// By tag: always for `latest`.
        UnspecifiedPolicy = 0 "UNSPECIFIED_POLICY",
        /// When it is not there.
        IfNotPresent = 1 "IfNotPresent",
        /// Always.
        Always = 2 "Always",
    }

    /// What happens when a module cannot run.
    pub enum FailStrategy {
        /// Requests fail.
        FailClose = 0 "FAIL_CLOSE",
        /// The filter is passed over.
        FailOpen = 1 "FAIL_OPEN",
        /// The machine is restarted.
        FailReload = 2 "FAIL_RELOAD",
    }

    /// Where a variable's value comes from.
    pub enum EnvValueSource {
        /// Given.
        Inline = 0 "INLINE",
        /// The proxy's environment.
        Host = 1 "HOST",
    }

    /// Side of the traffic that an extension applies to.
    pub enum SelectorMode {
        /// Both.
        Undefined = 0 "UNDEFINED",
        /// Outbound.
        Client = 1 "CLIENT",
        /// Inbound.
        Server = 2 "SERVER",
        /// Both.
        ClientAndServer = 3 "CLIENT_AND_SERVER",
    }
}
