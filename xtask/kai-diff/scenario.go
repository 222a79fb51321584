package main

import (
	"encoding/json"
	"time"

	"k8s.io/utils/ptr"
)

// scenario is a cluster in the format of docs/development/kai-cases.md.
type scenario struct {
	ID         string     `json:"id"`
	Actions    []string   `json:"actions"`
	Settings   settings   `json:"settings"`
	Nodes      []node     `json:"nodes"`
	Topologies []topology `json:"topologies"`
	Queues     []queue    `json:"queues"`
	Jobs       []job      `json:"jobs"`
	DRA        struct {
		Slices []json.RawMessage `json:"slices"`
		Claims []json.RawMessage `json:"claims"`
	} `json:"dra"`
}

type settings struct {
	Plugins       []plugin `json:"plugins"`
	Predicates    *bool    `json:"predicates"`
	NodePlacement *struct {
		CPU string `json:"cpu"`
		GPU string `json:"gpu"`
	} `json:"node_placement"`
	GPUPlacement               string  `json:"gpu_placement"`
	StalenessGracePeriodS      float64 `json:"staleness_grace_period_s"`
	MaxConsolidationPreemptees *int    `json:"max_consolidation_preemptees"`
	AllowConsolidatingReclaim  *bool   `json:"allow_consolidating_reclaim"`
}

func (s *settings) predicates() bool           { return ptr.Deref(s.Predicates, true) }
func (s *settings) maxConsolidated() int       { return ptr.Deref(s.MaxConsolidationPreemptees, -1) }
func (s *settings) consolidatingReclaim() bool { return ptr.Deref(s.AllowConsolidatingReclaim, true) }

// plugin is a name, or an object with the name.
type plugin struct {
	Name string `json:"name"`
}

func (p *plugin) UnmarshalJSON(data []byte) error {
	if data[0] == '"' {
		return json.Unmarshal(data, &p.Name)
	}
	type object plugin
	return json.Unmarshal(data, (*object)(p))
}

type node struct {
	Name         string            `json:"name"`
	GPUs         int               `json:"gpus_allocatable"`
	DRAGPUs      int               `json:"dra_gpus"`
	GPUMemoryMiB int               `json:"gpu_memory_mib"`
	Cards        []json.RawMessage `json:"cards"`
	CPUMillis    float64           `json:"cpu_millis"`
	MemBytes     float64           `json:"mem_bytes"`
	MaxPods      *int              `json:"max_pods"`
	Labels       map[string]string `json:"labels"`
	MIGStrategy  string            `json:"mig_strategy"`
	NUMA         *json.RawMessage  `json:"numa"`
}

type topology struct {
	Name   string   `json:"name"`
	Levels []string `json:"levels"`
}

type queue struct {
	Name               string   `json:"name"`
	Parent             string   `json:"parent"`
	CreatedOrder       int      `json:"created_order"`
	Priority           *int     `json:"priority"`
	DeservedGPUs       float64  `json:"deserved_gpus"`
	MaxGPUs            *float64 `json:"max_gpus"`
	Weight             float64  `json:"over_quota_weight"`
	DeservedCPUMillis  *float64 `json:"deserved_cpu_millis"`
	MaxCPUMillis       *float64 `json:"max_cpu_millis"`
	CPUWeight          *float64 `json:"cpu_over_quota_weight"`
	DeservedMemBytes   *float64 `json:"deserved_mem_bytes"`
	MaxMemBytes        *float64 `json:"max_mem_bytes"`
	MemWeight          *float64 `json:"mem_over_quota_weight"`
	PreemptMinRuntimeS *float64 `json:"preempt_min_runtime_s"`
	ReclaimMinRuntimeS *float64 `json:"reclaim_min_runtime_s"`
}

type job struct {
	Name                  string   `json:"name"`
	Queue                 string   `json:"queue"`
	Priority              int32    `json:"priority"`
	Preemptible           bool     `json:"preemptible"`
	AgeMinutes            *float64 `json:"age_minutes"`
	LastStartAgeS         *float64 `json:"last_start_age_s"`
	PreemptionDelayS      *float64 `json:"preemption_delay_s"`
	StaleForS             *float64 `json:"stale_for_s"`
	StalenessGracePeriodS *float64 `json:"staleness_grace_period_s"`
	QOSClass              string   `json:"qos_class"`
	Subgroups             group    `json:"subgroups"`
	Tasks                 []task   `json:"tasks"`
}

type group struct {
	Name         string      `json:"name"`
	MinSubGroups *int32      `json:"min_sub_groups"`
	Topology     *constraint `json:"topology"`
	Groups       []group     `json:"groups"`
	PodSets      []podSet    `json:"pod_sets"`
}

type podSet struct {
	Name         string      `json:"name"`
	MinAvailable int32       `json:"min_available"`
	Topology     *constraint `json:"topology"`
}

type constraint struct {
	Topology  string `json:"topology"`
	Required  string `json:"required_level"`
	Preferred string `json:"preferred_level"`
}

type task struct {
	ID            string   `json:"id"`
	Subgroup      string   `json:"subgroup"`
	State         string   `json:"state"`
	Node          string   `json:"node"`
	GPU           gpu      `json:"gpu"`
	GPUGroups     []string `json:"gpu_groups"`
	LegacyMIG     bool     `json:"legacy_mig"`
	CPUMillis     *float64 `json:"cpu_millis"`
	MemBytes      *float64 `json:"mem_bytes"`
	OrderPriority *int     `json:"order_priority"`
	NodeAffinity  []string `json:"node_affinity"`
	PodAffinity   *struct {
		Labels          map[string]string `json:"labels"`
		AffinityKey     string            `json:"affinity_topology_key"`
		AntiAffinityKey string            `json:"anti_affinity_topology_key"`
	} `json:"pod_affinity"`
	ResourceClaims []string         `json:"resource_claims"`
	NUMAObserved   *json.RawMessage `json:"numa_observed"`
}

type gpu struct {
	Kind       string  `json:"kind"`
	GPUs       float64 `json:"gpus"`
	Portion    float64 `json:"portion"`
	MemoryMiB  uint64  `json:"gpu_memory_mib"`
	NumDevices *uint64 `json:"num_devices"`
}

const (
	usualCPUMillis = 1000
	usualMemBytes  = 1e9
)

func (t *task) cpu() float64 { return ptr.Deref(t.CPUMillis, usualCPUMillis) }
func (t *task) mem() float64 { return ptr.Deref(t.MemBytes, usualMemBytes) }

func seconds(amount float64) time.Duration { return time.Duration(amount * float64(time.Second)) }
