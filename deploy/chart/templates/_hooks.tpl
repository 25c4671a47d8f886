{{/* What the pods of hooks have in common: as little as a client of the API server needs. */}}

{{/* Of: root, account. */}}
{{- define "vmlet.hook-pod" -}}
serviceAccountName: {{ .account }}
automountServiceAccountToken: true
enableServiceLinks: false
restartPolicy: Never
nodeSelector:
  kubernetes.io/os: linux
  kubernetes.io/arch: amd64
  {{- with .root.Values.controller.nodeSelector }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .root.Values.controller.tolerations }}
tolerations:
  {{- toYaml . | nindent 2 }}
{{- end }}
securityContext:
  runAsNonRoot: true
  runAsUser: 65534
  runAsGroup: 65534
  seccompProfile:
    type: RuntimeDefault
{{- end }}

{{/* Of: root. */}}
{{- define "vmlet.hook-container" -}}
image: {{ include "vmlet.image" (dict "root" . "part" "") }}
{{- with .Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
securityContext:
  allowPrivilegeEscalation: false
  readOnlyRootFilesystem: true
  capabilities:
    drop: [ALL]
resources:
  requests:
    cpu: 10m
    memory: 32Mi
  limits:
    memory: 512Mi
{{- end }}
