package kubeproxyconfig

import (
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/component-base/logs/api/v1"
	"k8s.io/kube-proxy/config/v1alpha1"
	"sigs.k8s.io/yaml"
)

// Default is kube-proxy's default configuration as YAML (kube-proxy 1.36:
// pkg/proxy/apis/config/v1alpha1, SetDefaults_KubeProxyConfiguration).
func Default() ([]byte, error) {
	text, err := yaml.Marshal(defaults())
	if err != nil {
		return nil, fmt.Errorf("write the default configuration: %w", err)
	}
	return text, nil
}

func defaults() v1alpha1.KubeProxyConfiguration {
	seconds := func(n int) metav1.Duration { return metav1.Duration{Duration: time.Duration(n) * time.Second} }
	day, hour := seconds(24*60*60), seconds(60*60)
	c := v1alpha1.KubeProxyConfiguration{
		TypeMeta:    metav1.TypeMeta{APIVersion: apiVersion, Kind: kind},
		BindAddress: "0.0.0.0", OOMScoreAdj: new(int32(-999)), ConfigSyncPeriod: seconds(15 * 60),
		IPTables: v1alpha1.KubeProxyIPTablesConfiguration{
			SyncPeriod: seconds(30), MinSyncPeriod: seconds(1), LocalhostNodePorts: new(true),
		},
		IPVS:     v1alpha1.KubeProxyIPVSConfiguration{SyncPeriod: seconds(30)},
		NFTables: v1alpha1.KubeProxyNFTablesConfiguration{SyncPeriod: seconds(30), MinSyncPeriod: seconds(1)},
		Conntrack: v1alpha1.KubeProxyConntrackConfiguration{
			MaxPerCore: new(int32(32 * 1024)), Min: new(int32(128 * 1024)), TCPEstablishedTimeout: &day,
			TCPCloseWaitTimeout: &hour,
		},
	}
	c.ClientConnection.ContentType = "application/vnd.kubernetes.protobuf"
	c.ClientConnection.QPS, c.ClientConnection.Burst = 5, 10
	setDefaults(&c)
	v1.SetRecommendedLoggingConfiguration(&c.Logging)
	return c
}
