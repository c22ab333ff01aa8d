package watch

import (
	"fmt"

	"nftproxy/model/service"
	"nftproxy/model/share"
)

// growing has the new endpoints of a snapshot have the part of their weight that they have now, and notes when that
// changes next. It reports Services for whose new endpoints the node has no room. The caller holds the lock.
func (w *Watcher) growing(s service.Snapshot) service.Snapshot {
	if !w.opts.SlowStart {
		return s
	}
	growing, next, refused := w.starts.Follow(s, w.now())
	w.grows = next
	if len(refused) > 0 {
		d := &denials{index: w.index}
		for _, name := range refused {
			d.add(name, &SlowStartError{})
		}
		d.addOmitted()
	}
	w.index.builder.SetGrowing(growing)
	return w.index.builder.Snapshot()
}

// SlowStartError says that endpoints of a Service that are new have their whole weight at once, although it asks for a
// slow start: the Services with new endpoints have as many as a node follows.
type SlowStartError struct{}

func (e *SlowStartError) Error() string {
	return fmt.Sprintf("new endpoints have their whole weight at once: the Services of a namespace that have new "+
		"endpoints may have %d together, those of all %d, and there would be more", share.MaxGrowingOfNamespace,
		share.MaxGrowing)
}
