package tablekeeper

import "testing"

// TestPodText: the pod of a process by its cgroups, of version 1 and 2.
func TestPodText(t *testing.T) {
	const want = ", of the pod with the UID 91e8d3fb-7a3d-4d43-9bd8-1c1b4a1a5c7e"
	for _, groups := range []string{
		"4:memory:/kubepods/burstable/pod91e8d3fb-7a3d-4d43-9bd8-1c1b4a1a5c7e/0123abc\n",
		"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod91e8d3fb_7a3d_4d43_9bd8_1c1b4a1a5c7e.slice/" +
			"cri-containerd-01.scope\n",
	} {
		if got := podText(groups); got != want {
			t.Errorf("%q: got %q", groups, got)
		}
	}
	if got := podText("0::/system.slice/nftproxy.service\n"); got != "" {
		t.Errorf("a service of systemd: got %q", got)
	}
}
