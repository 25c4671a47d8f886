{{/* Where nodes keep things: platforms.yaml, and over it `paths`. */}}

{{/* All paths, as YAML. Of: root. */}}
{{- define "vmlet.paths" -}}
{{- $platforms := .Files.Get "platforms.yaml" | fromYaml }}
{{- $paths := get $platforms .Values.platform }}
{{- $own := .Values.paths }}
{{- if $own.cniPlugins }}
{{- $_ := set $paths "cniPluginsMount" $own.cniPlugins }}
{{- end }}
{{- range $name, $path := $own }}
{{- if $path }}
{{- $_ := set $paths $name $path }}
{{- end }}
{{- end }}
{{- $mount := printf "%s/" (trimSuffix "/" $paths.cniPluginsMount) }}
{{- if not (hasPrefix $mount (printf "%s/" $paths.cniPlugins)) }}
{{- fail (printf "paths.cniPluginsMount %s does not contain the plugins in %s" $paths.cniPluginsMount $paths.cniPlugins) }}
{{- end }}
{{- toYaml $paths }}
{{- end }}

{{/*
Mounts the paths at the same place in the containers: configurations of networks, and requests of kubelet, name files
by their path on the node. prepare-node only looks whether there is a network. Of: root, pod.
*/}}
{{- define "vmlet.node-paths" -}}
{{- $paths := include "vmlet.paths" .root | fromYaml }}
{{- $places := dict
  "cni-conf" $paths.cniConfig
  "cni-bin" $paths.cniPluginsMount
  "cni-state" $paths.cniState
  "kubelet" $paths.kubelet
  "pod-logs" $paths.podLogs }}
{{- range .pod.volumes }}
{{- if hasKey $places .name }}
{{- $_ := set .hostPath "path" (get $places .name) }}
{{- end }}
{{- end }}
{{- range .pod.containers }}
{{- $container := . }}
{{- range .volumeMounts }}
{{- if hasKey $places .name }}
{{- $_ := set . "mountPath" (get $places .name) }}
{{- end }}
{{- end }}
{{- if eq .name "tapmanager" }}
{{- range $index, $path := $paths.networkFolders }}
{{- $volume := printf "network-folder-%d" $index }}
{{- $_ := set $container "volumeMounts" (append $container.volumeMounts (dict "name" $volume "mountPath" $path)) }}
{{- $_ := set $.pod "volumes" (append $.pod.volumes (dict "name" $volume "hostPath" (dict "path" $path "type" "DirectoryOrCreate"))) }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}

{{/* What the tapmanager has to know of them, as YAML: nothing where they are the defaults. Of: root. */}}
{{- define "vmlet.tapmanager-paths" -}}
{{- $paths := include "vmlet.paths" . | fromYaml }}
{{- $settings := dict }}
{{- if ne $paths.cniConfig "/etc/cni/net.d" }}
{{- $_ := set $settings "cni_conf_dir" $paths.cniConfig }}
{{- end }}
{{- if ne $paths.cniPlugins "/opt/cni/bin" }}
{{- $_ := set $settings "cni_bin_dir" (list $paths.cniPlugins "/usr/lib/cni") }}
{{- end }}
{{- toYaml $settings }}
{{- end }}
