// Lets the questions of `cargo xtask kai-groups` ask KAI's Karta grouper; laid over KAI's tree beside it.

package karta

import (
	kartav1alpha1 "github.com/run-ai/karta/pkg/api/runai/v1alpha1"
	"github.com/run-ai/karta/pkg/instructions"

	"github.com/kai-scheduler/KAI-scheduler/pkg/podgrouper/podgrouper/plugins/grouper"
)

// ForApportion is the grouper for the kind that a Karta defines.
func ForApportion(karta *kartav1alpha1.Karta, fallback grouper.Grouper) (grouper.Grouper, error) {
	summary, err := instructions.NewStructureSummary(karta)
	if err != nil {
		return nil, err
	}
	return &KartaGrouper{kartaSummary: summary, defaultGrouper: fallback}, nil
}
