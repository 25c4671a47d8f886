{{/*
Settings of the programs, in ConfigMaps whose names change with their content, as kustomize names them: so a new
configuration is rolled out as a new image is.
*/}}

{{/* The data of a ConfigMap, as JSON. Of: root, name. */}}
{{- define "vmlet.settings" -}}
{{- $values := .root.Values }}
{{- $data := dict }}
{{- if eq .name "vmlet-node" }}
{{- $_ := set $data "vmlet.toml" (include "vmlet.toml" (dict "root" .root
  "file" "node/vmlet.toml" "value" "node.settings" "text" $values.node.settings "platform" dict
  "fixed" (list "listen" "state_dir" "node.endpoint" "node.agent_uid" "libvirt.uri" "shares.host_root" "images.registries_dir"
    "images.translations_dir"))) }}
{{- $_ := set $data "tapmanager.toml" (include "vmlet.toml" (dict "root" .root
  "file" "node/tapmanager.toml" "value" "node.tapmanagerSettings" "text" $values.node.tapmanagerSettings
  "platform" (include "vmlet.tapmanager-paths" .root | fromYaml)
  "fixed" (list "cni_conf_dir" "cni_bin_dir" "cni_cache_dir" "state_dir" "console_dir" "control_socket"
    "handoff_socket" "netns_dir" "cgroup_root"))) }}
{{- else if eq .name "vmlet-controller" }}
{{- $_ := set $data "controller.toml" (include "vmlet.toml" (dict "root" .root
  "file" "controller/controller.toml" "value" "controller.settings" "text" $values.controller.settings
  "platform" dict "fixed" (list "listen" "probe_listen" "namespace" "lease.identity"))) }}
{{- else }}
{{- fail (printf "no values are the settings %s" .name) }}
{{- end }}
{{- toJson $data }}
{{- end }}

{{/* A file of settings with what is set over it. Of: root, file, platform, value, text, fixed. */}}
{{- define "vmlet.toml" -}}
{{- $base := .root.Files.Get (printf "files/settings/%s" .file) }}
{{- if and (not .platform) (not (trim .text)) }}
{{- $base }}
{{- else }}
{{- $own := fromToml .text }}
{{- if kindIs "string" $own.Error }}{{ fail (printf "%s: %s" .value $own.Error) }}{{ end }}
{{- range $setting := .fixed }}
{{- $place := $own }}
{{- range splitList "." $setting }}
{{- $place = ternary (get $place .) nil (and (kindIs "map" $place) (hasKey $place .)) }}
{{- end }}
{{- if not (kindIs "invalid" $place) }}
{{- fail (printf "%s: the chart sets %s, since mounts and ports of the pod depend on it" $.value $setting) }}
{{- end }}
{{- end }}
{{- mergeOverwrite (fromToml $base) .platform $own | toToml }}
{{- end }}
{{- end }}

{{/* kustomize leaves the name out of what it hashes. Of: root, name. */}}
{{- define "vmlet.settings-name" -}}
{{- $data := include "vmlet.settings" . | fromJson }}
{{- $content := dict "kind" "ConfigMap" "name" "" "data" $data | toJson | sha256sum | trunc 10 }}
{{- $content = $content | replace "0" "g" | replace "1" "h" | replace "3" "k" | replace "a" "m" | replace "e" "t" }}
{{- printf "%s-%s" .name $content }}
{{- end }}
