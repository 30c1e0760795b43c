{{/* Name of the chart in labels. */}}
{{- define "guideway.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" }}
{{- end }}

{{/* Name of the headless Service, and the beginning of every other name. */}}
{{- define "guideway.fullname" -}}
{{- if .Values.fullnameOverride }}
{{- .Values.fullnameOverride | trunc 50 | trimSuffix "-" }}
{{- else if contains (include "guideway.name" .) .Release.Name }}
{{- .Release.Name | trunc 50 | trimSuffix "-" }}
{{- else }}
{{- printf "%s-%s" .Release.Name (include "guideway.name" .) | trunc 50 | trimSuffix "-" }}
{{- end }}
{{- end }}

{{- define "guideway.agent.name" -}}
{{ include "guideway.fullname" . }}-agent
{{- end }}

{{- define "guideway.controller.name" -}}
{{ include "guideway.fullname" . }}-controller
{{- end }}

{{- define "guideway.agent.serviceAccount" -}}
{{ include "guideway.agent.name" . }}
{{- end }}

{{- define "guideway.controller.serviceAccount" -}}
{{ include "guideway.controller.name" . }}
{{- end }}

{{/* Namespace of the edges' Leases, which agents take for it by themselves. */}}
{{- define "guideway.leaseNamespace" -}}
{{ default (printf "%s-edges" (include "guideway.fullname" .)) .Values.agent.kubernetes.lease_namespace }}
{{- end }}

{{/* What the selectors of a component match: never changes. (dict "root" . "component" NAME) */}}
{{- define "guideway.selectorLabels" -}}
app.kubernetes.io/name: {{ include "guideway.name" .root }}
app.kubernetes.io/instance: {{ .root.Release.Name }}
app.kubernetes.io/component: {{ .component }}
{{- end }}

{{/* Labels of every object of a component. (dict "root" . "component" NAME) */}}
{{- define "guideway.labels" -}}
{{ include "guideway.selectorLabels" . }}
app.kubernetes.io/part-of: guideway
app.kubernetes.io/version: {{ .root.Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .root.Chart.Name .root.Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- with .root.Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end }}

{{- define "guideway.image" -}}
{{- $repository := required "image.repository: build deploy/Dockerfile, push the image and name it here" .Values.image.repository }}
{{- if .Values.image.digest }}
{{- printf "%s@%s" $repository .Values.image.digest }}
{{- else }}
{{- printf "%s:%s" $repository (default .Chart.AppVersion .Values.image.tag) }}
{{- end }}
{{- end }}

{{/* ADDRESS:PORT, with brackets around an IPv6 address; the node's own addresses without one. (list ADDRESS PORT) */}}
{{- define "guideway.socket" -}}
{{- $address := default "node" (index . 0) }}
{{- if contains ":" $address }}
{{- printf "[%s]:%d" $address (int (index . 1)) }}
{{- else }}
{{- printf "%s:%d" $address (int (index . 1)) }}
{{- end }}
{{- end }}

{{/* Environment of agents and controller. (dict "root" . "log" FILTER) */}}
{{- define "guideway.env" -}}
- name: GUIDEWAY_LOG
  value: {{ .of.log | quote }}
- name: GUIDEWAY_LOG_FORMAT
  value: {{ .of.logFormat | quote }}
- name: POD_NAMESPACE
  valueFrom:
    fieldRef:
      fieldPath: metadata.namespace
- name: POD_NAME
  valueFrom:
    fieldRef:
      fieldPath: metadata.name
- name: NODE_NAME
  valueFrom:
    fieldRef:
      fieldPath: spec.nodeName
{{- with .root.Values.apiServer.host }}
- name: KUBERNETES_SERVICE_HOST
  value: {{ . | quote }}
- name: KUBERNETES_SERVICE_PORT
  value: {{ $.root.Values.apiServer.port | quote }}
{{- end }}
{{- end }}

{{/* The agent's directory on the node's BPF file system. */}}
{{- define "guideway.agent.pinDir" -}}
{{- default "/sys/fs/bpf/guideway" .Values.agent.extraConfig.pin_dir }}
{{- end }}

{{/* A probe of PATH. (dict "probe" VALUES "path" PATH "port" NAME "host" ADDRESS) */}}
{{- define "guideway.probe" -}}
httpGet:
  path: {{ .path }}
  port: {{ .port }}
  {{- if .host }}
  host: {{ .host | quote }}
  {{- end }}
periodSeconds: {{ .probe.periodSeconds }}
timeoutSeconds: {{ .probe.timeoutSeconds }}
failureThreshold: {{ .probe.failureThreshold }}
{{- end }}

{{/* Fields of the agent's configuration file that only a start reads. */}}
{{- define "guideway.agent.startConfig" -}}
{{- $atStart := list "hash_seed" "tables" "api" "pin_dir" }}
default_mode: {{ .Values.agent.defaultMode }}
metrics:
  listen: {{ include "guideway.socket" (list .Values.agent.listenAddress .Values.agent.metricsPort) | quote }}
kubernetes:
  service: {{ include "guideway.fullname" . }}
  load_balancer_class: {{ .Values.loadBalancerClass }}
  {{- if .Values.defaultClass }}
  default_class: "on"
  {{- end }}
  healthz: {{ include "guideway.socket" (list .Values.agent.listenAddress .Values.agent.healthPort) | quote }}
  {{- with .Values.agent.kubernetes }}
  {{- toYaml . | nindent 2 }}
  {{- end }}
{{- with .Values.agent.peers }}
{{- if .enabled }}
{{- /* Other machines reach no loopback address. */}}
{{- $isLoopback := has $.Values.agent.listenAddress (list "127.0.0.1" "::1") }}
peers:
  listen: {{ include "guideway.socket" (list (ternary "" $.Values.agent.listenAddress $isLoopback) .port) | quote }}
{{- end }}
{{- end }}
{{- range $field, $value := .Values.agent.extraConfig }}
{{- if has $field $atStart }}
{{ toYaml (dict $field $value) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Whether edges elect who announces addresses: "true", or nothing. */}}
{{- define "guideway.agent.announces" -}}
{{- $announces := hasKey .Values.agent.extraConfig "announce" }}
{{- range .Values.agent.nodeConfig }}
{{- $announces = or $announces (hasKey .config "announce") }}
{{- end }}
{{- ternary "true" "" $announces }}
{{- end }}

{{/* Whether packets are mended on any node: "true", or nothing. */}}
{{- define "guideway.agent.mends" -}}
{{- $mends := eq (toString (get .Values.agent.extraConfig "mend")) "on" }}
{{- range .Values.agent.nodeConfig }}
{{- $mends = or $mends (eq (toString (get .config "mend")) "on") }}
{{- end }}
{{- ternary "true" "" $mends }}
{{- end }}

{{/* What a start alone brings into force: those fields, also of single nodes, and whether edges elect. */}}
{{- define "guideway.agent.startChecksum" -}}
{{- $start := printf "%s\nannounce: %t" (include "guideway.agent.startConfig" .) (hasKey .Values.agent.extraConfig "announce") }}
{{- range .Values.agent.nodeConfig }}
{{- $atStart := pick .config "default_mode" "kubernetes" "tables" }}
{{- $announces := hasKey .config "announce" }}
{{- if or $atStart $announces }}
{{- $start = printf "%s\n%s %s %t" $start (toJson .nodes) (toJson $atStart) $announces }}
{{- end }}
{{- end }}
{{- sha256sum $start }}
{{- end }}

{{/* The agent's configuration file. */}}
{{- define "guideway.agent.config" -}}
{{- if not (or .Values.controller.enabled (hasKey .Values.agent.extraConfig "hash_seed")) }}
{{- fail "controller.enabled=false: agents wait for the seed of the flow hash, which the controller makes; set agent.extraConfig.hash_seed, equal on all edges" }}
{{- end }}
{{- if not .Values.agent.interfaces }}
{{- fail "agent.interfaces: name the interfaces that service traffic enters by" }}
{{- end }}
interfaces:
  {{- toYaml .Values.agent.interfaces | nindent 2 }}
{{- with .Values.agent.nat }}
nat:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- with omit .Values.agent.extraConfig "hash_seed" "tables" "api" "pin_dir" }}
{{ toYaml . }}
{{- end }}
{{ include "guideway.agent.startConfig" . | trim }}
{{- with .Values.agent.nodeConfig }}
node_config:
  {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}

{{/* Name of the Secret with the seed of the flow hash. */}}
{{- define "guideway.seedSecret" -}}
guideway-seed
{{- end }}

{{/* Name of the Secret with the key of edges that exchange owners. */}}
{{- define "guideway.peersSecret" -}}
guideway-peers
{{- end }}
