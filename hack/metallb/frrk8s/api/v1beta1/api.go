// Package v1beta1 stands in for the objects of the routing daemon frr-k8s, which MetalLB writes in its mode frr-k8s.
// Not every module proxy has the version that MetalLB names, and the test clusters run another mode. The API server's
// client does not know these objects, so each call with one fails.
package v1beta1

import (
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
)

// AddToScheme adds nothing.
func AddToScheme(*runtime.Scheme) error { return nil }

// FRRConfiguration is the object.
type FRRConfiguration struct {
	metav1.TypeMeta
	metav1.ObjectMeta
	Spec FRRConfigurationSpec
}

// DeepCopy copies the object as far as it is used: what it points at is shared.
func (c *FRRConfiguration) DeepCopy() *FRRConfiguration {
	other := *c
	return &other
}

// DeepCopyObject is DeepCopy.
func (c *FRRConfiguration) DeepCopyObject() runtime.Object { return c.DeepCopy() }

// FRRConfigurationSpec is what is wanted.
type FRRConfigurationSpec struct {
	NodeSelector metav1.LabelSelector
	BGP          BGPConfig
}

// DeepCopyInto copies as DeepCopy does.
func (s *FRRConfigurationSpec) DeepCopyInto(other *FRRConfigurationSpec) { *other = *s }

// BGPConfig is the routing daemon's part.
type BGPConfig struct {
	Routers     []Router
	BFDProfiles []BFDProfile
}

// Router speaks to neighbours.
type Router struct {
	ASN       uint32
	ID, VRF   string
	Neighbors []Neighbor
	Prefixes  []string
}

// DynamicASNMode says which AS a neighbour may be.
type DynamicASNMode string

// Neighbor is a peer.
type Neighbor struct {
	Address, Interface                                                     string
	ASN                                                                    uint32
	DynamicASN                                                             DynamicASNMode
	Port                                                                   *uint16
	HoldTime, KeepaliveTime, ConnectTime                                   *metav1.Duration
	BFDProfile, Password                                                   string
	EnableGracefulRestart, EBGPMultiHop, DualStackAddressFamily, DisableMP bool
	ToAdvertise                                                            Advertise
	PasswordSecret                                                         SecretReference
}

// SecretReference names a Secret.
type SecretReference struct{ Name, Namespace string }

// Advertise says what a peer is told.
type Advertise struct {
	Allowed                   AllowedOutPrefixes
	PrefixesWithLocalPref     []LocalPrefPrefixes
	PrefixesWithCommunity     []CommunityPrefixes
	PrefixesWithAsPathPrepend []AsPathPrependPrefixes
}

// AllowedOutPrefixes are the prefixes of Advertise.
type AllowedOutPrefixes struct{ Prefixes []string }

// LocalPrefPrefixes are prefixes with a preference.
type LocalPrefPrefixes struct {
	LocalPref uint32
	Prefixes  []string
}

// CommunityPrefixes are prefixes with a community.
type CommunityPrefixes struct {
	Community string
	Prefixes  []string
}

// AsPathPrependPrefixes are prefixes with a longer path.
type AsPathPrependPrefixes struct {
	AsPathPrepend uint8
	Prefixes      []string
}

// BFDProfile says how a peer's end is noticed.
type BFDProfile struct {
	Name                                                                          string
	ReceiveInterval, TransmitInterval, DetectMultiplier, EchoInterval, MinimumTTL *uint32
	EchoMode, PassiveMode                                                         *bool
}
